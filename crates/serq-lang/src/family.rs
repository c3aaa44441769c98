//! Pool and stage families: their options, linked.

use std::collections::BTreeMap;

use serq_ir::json::Number;
use serq_ir::{self as ir};

use crate::ast::{self, PoolOptionKind, ServeRule, StageKindKind, StepOptionKind};
use crate::fold;
use crate::link::Linker;
use crate::moment::Clause;
use crate::reference::Doing;
use crate::resolve::{Kind, Reported, Result};
use crate::scope::{Room, ScopeId};
use crate::source::Span;

impl<'a> Linker<'a> {
    /// The words a queue's own clauses may use.
    fn options_scope(&mut self, queue: Option<usize>) -> ScopeId {
        match queue {
            Some(queue) => self.scopes.room(Room::Options { queue }, Vec::new()),
            None => self.program,
        }
    }

    /// `cap` and `block`, needed before any expression is linked.
    pub(crate) fn cap_and_block(&mut self, pool: usize) {
        let declared = self.names.pools[pool].declared;
        for option in &declared.options {
            match &option.kind {
                PoolOptionKind::Cap(e) => {
                    if let Ok(cap) = self.constant(e, "`cap`") {
                        if cap < 0.0 {
                            self.error(
                                "bad-constant",
                                e.span,
                                format!("a `cap` of {cap} is negative", cap = fold::show(cap)),
                            )
                            .help("`cap inf` has no limit")
                            .done(self);
                        }
                        self.names.pools[pool].cap = cap;
                    }
                }
                PoolOptionKind::Block(e) => {
                    if let Ok(block) = self.constant(e, "`block`") {
                        if !(block > 0.0 && block.is_finite()) {
                            self.error(
                                "bad-constant",
                                e.span,
                                format!("a `block` of {block} is not a positive number"),
                            )
                            .help("leave `block` out for exact units")
                            .done(self);
                        } else {
                            self.names.pools[pool].block = Some(block);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// All pools.
    pub(crate) fn link_pools(&mut self) -> Result<Vec<ir::Pool>> {
        let linked: Vec<_> = (0..self.names.pools.len()).map(|p| self.link_pool(p)).collect();
        let pools = linked.into_iter().collect::<Result<Vec<ir::Pool>>>()?;
        self.check_spilled_on(&pools);
        Ok(pools)
    }

    /// What is spilled into a pool is known by the names of its own blocks, and goes on by these.
    fn check_spilled_on(&mut self, pools: &[ir::Pool]) {
        for (at, pool) in pools.iter().enumerate().filter(|(_, pool)| pool.share_prefixes) {
            let Some(into) = pool.spill.as_ref().map(|spill| &pools[spill.pool.pool as usize]) else { continue };
            let comes = |of: &ir::Pool| of.spill.as_ref().is_some_and(|spill| spill.pool.pool as usize == at);
            let (Some(block), Some(there)) = (pool.block, into.block) else { continue };
            let target = self.names.pools[at].declared.options.iter().find_map(|option| match &option.kind {
                PoolOptionKind::Spill { pool, .. } => Some(pool.span),
                _ => None,
            });
            let Some(span) = target.filter(|_| block != there && pools.iter().any(comes)) else { continue };
            let (own, into) = (&pool.name, &into.name);
            let message = format!(
                "what is spilled into `{own}` is known by its blocks of {}, and `{into}` has blocks of {}",
                block.0, there.0
            );
            self.error("share-prefixes", span, message).help("give both one block").done(self);
        }
    }

    fn link_pool(&mut self, pool: usize) -> Result<ir::Pool> {
        let (declared, queue) = (self.names.pools[pool].declared, self.names.pools[pool].queue);
        let scope = self.options_scope(queue);
        let mut seen: BTreeMap<&'static str, Span> = BTreeMap::new();
        let (mut evict, mut preempt, mut order) = (Ok(ir::Evict::Lru), Ok(ir::Preempt::None), Ok(ir::Order::Fifo));
        let mut found_scheduled = false;
        let (mut via, mut spill) = (Ok(None), Ok(None));
        for option in &declared.options {
            let word = match &option.kind {
                PoolOptionKind::Cap(_) => "cap",
                PoolOptionKind::Block(_) => "block",
                PoolOptionKind::Evict(_) => "evict",
                PoolOptionKind::Preempt(_) => "preempt",
                PoolOptionKind::Queue(_) => "queue",
                PoolOptionKind::AdmitVia(_) => "admit via",
                PoolOptionKind::SharePrefixes(_) => "share prefixes",
                PoolOptionKind::Spill { .. } => "spill",
            };
            if let Some(&first) = seen.get(word) {
                self.error("repeated", option.span, format!("`{word}` is given twice"))
                    .note(first, "first here")
                    .help("keep one")
                    .done(self);
                continue;
            }
            seen.insert(word, option.span);
            match &option.kind {
                PoolOptionKind::Cap(_) | PoolOptionKind::Block(_) => {}
                PoolOptionKind::Evict(None) => {}
                PoolOptionKind::Evict(Some(keys)) => {
                    evict = self.keys(keys, scope, Clause::EvictKey).map(ir::Evict::By)
                }
                PoolOptionKind::Preempt(ast::Preempt::None) => {}
                PoolOptionKind::Preempt(ast::Preempt::Lifo) => preempt = Ok(ir::Preempt::Lifo),
                PoolOptionKind::Preempt(ast::Preempt::By(keys)) => {
                    preempt = self.keys(keys, scope, Clause::PreemptKey).map(ir::Preempt::By);
                }
                PoolOptionKind::Queue(None) => {}
                PoolOptionKind::Queue(Some(keys)) => {
                    order = self.keys(keys, scope, Clause::QueueKey).map(ir::Order::By)
                }
                PoolOptionKind::SharePrefixes(scheduled) => found_scheduled = *scheduled,
                PoolOptionKind::AdmitVia(r) => via = self.admit_via(pool, r, scope).map(Some),
                PoolOptionKind::Spill { pool: target, stage, work, when } => {
                    spill = self.spill(pool, target, stage, work, when, scope).map(Some);
                }
            }
        }
        let shares = seen.get("share prefixes").copied();
        if let Some(span) = shares {
            self.check_sharing(pool, span, seen.get("evict").copied().filter(|_| !matches!(evict, Ok(ir::Evict::Lru))));
        }
        let known = &self.names.pools[pool];
        Ok(ir::Pool {
            name: known.name.clone(),
            size: known.size,
            cap: Number(known.cap),
            block: known.block.map(Number),
            evict: evict?,
            preempt: preempt?,
            order: order?,
            via: via?,
            share_prefixes: shares.is_some(),
            found_scheduled,
            spill: spill?,
        })
    }

    /// `share prefixes` speaks of blocks: no keys of entries.
    fn check_sharing(&mut self, pool: usize, span: Span, keys: Option<Span>) {
        let known = &self.names.pools[pool];
        let (message, there, help) = if known.block.is_none() {
            ("what is shared is blocks, and this pool has none", None, "add `block 16;`")
        } else if keys.is_some() {
            (
                "a block has no owner an eviction key could read",
                keys,
                "leave `evict` out: the block unused longest goes first",
            )
        } else {
            return;
        };
        let e = self.error("share-prefixes", span, format!("prefixes can't be shared here: {message}")).help(help);
        let e = match there {
            Some(there) => e.note(there, "this clause"),
            None => e,
        };
        e.done(self);
    }

    pub(crate) fn keys(&mut self, keys: &'a [ast::Expr], scope: ScopeId, at: Clause) -> Result<Vec<ir::Expr>> {
        let linked: Vec<_> = keys.iter().map(|k| self.expr(k, scope, at)).collect();
        linked.into_iter().collect()
    }

    /// The family a clause pairs with, without an index.
    fn paired_stage(&mut self, r: &'a ast::Ref, scope: ScopeId, what: &'static str) -> Result<usize> {
        if let Some(index) = &r.index {
            return Err(self
                .error("pairing", r.span, format!("`{what}` names a family, not a member"))
                .note(index.span, "this index")
                .help(format!("write `{}`: member k goes with member k", r.name.text))
                .done(self));
        }
        // Without an index every member is meant, so the family's size is not asked for.
        let word = r.name.text.as_str();
        if r.field.is_none()
            && let Some(&stage) = self.names.stage_of.get(word)
        {
            return Ok(stage);
        }
        self.stage_ref(r, scope, Clause::Value, Doing::Names(what)).map(|s| s.stage as usize)
    }

    fn admit_via(&mut self, pool: usize, r: &'a ast::Ref, scope: ScopeId) -> Result<u32> {
        let stage = self.paired_stage(r, scope, "admit via")?;
        let known = &self.names.stages[stage];
        let (name, word, span, size) = (known.name.clone(), known.word(), known.span, known.size);
        if !known.is_step() {
            return Err(self
                .error("wrong-kind", r.span, format!("`admit via {name}`: a `{word}` stage plans no iterations and would never admit"))
                .note(span, "declared here")
                .help("name a `step` stage, or leave `admit via` out: the queue is then served whenever something is given back")
                .done(self));
        }
        let own = self.names.pools[pool].size.unwrap_or(1);
        let served = size.unwrap_or(1);
        if served != 1 && served != own {
            return Err(self
                .error("pairing", r.span, format!("a pool of {own} can't pair up with `{name}` of {served}"))
                .note(span, "declared here")
                .help("give both one size, or use a single stage for all members")
                .done(self));
        }
        Ok(stage as u32)
    }

    fn spill(
        &mut self,
        pool: usize,
        target: &'a ast::Ref,
        stage: &'a ast::Ref,
        work: &'a ast::Expr,
        when: &'a ast::Expr,
        scope: ScopeId,
    ) -> Result<ir::Spill> {
        let own = self.names.pools[pool].size.unwrap_or(1);
        let to = self.spill_pool(own, target, scope);
        let on = self.spill_stage(own, stage, scope);
        let (work, when) = (self.expr(work, scope, Clause::Spill), self.expr(when, scope, Clause::Spill));
        let (to, on) = (to?, on?);
        for (member, span) in [(&to.member, target.span), (&on.member, stage.span)] {
            if member.as_ref().is_some_and(|m| !matches!(**m, ir::Expr::Number(_))) {
                return Err(self
                    .error("not-constant", span, "the index of a spill is not a constant")
                    .help("name one member by a number, or give both families one size")
                    .done(self));
            }
        }
        if to.pool as usize == pool {
            return Err(self.error("pairing", target.span, "a pool can't spill into itself").done(self));
        }
        let (work, when) = (work?, when?);
        self.check_spilled_blocks(pool, to.pool as usize, target.span, [&work, &when])?;
        if self.names.stages.get(on.stage as usize).is_some_and(crate::resolve::Stage::is_step) {
            return Err(self
                .error("wrong-mode", stage.span, "a spill is a plain job, which a `step` stage does not take")
                .help("name a `fifo`, `ps` or `delay` stage")
                .done(self));
        }
        Ok(ir::Spill { pool: to, stage: on, work, when })
    }

    /// Blocks that are shared go to where blocks are shared, into as many whole ones, and belong to nobody; pieces of
    /// entries go to where sessions have entries.
    fn check_spilled_blocks(&mut self, pool: usize, to: usize, target: Span, read: [&ir::Expr; 2]) -> Result<()> {
        let shares = |pool: usize| {
            let options = &self.names.pools[pool].declared.options;
            options.iter().find(|option| matches!(option.kind, PoolOptionKind::SharePrefixes(_))).map(|o| o.span)
        };
        let (own, there) = (shares(pool), shares(to));
        let name = self.names.pools[to].name.clone();
        let (message, note, help) = match (own, there) {
            (None, None) => return Ok(()),
            (None, Some(shared)) => (
                format!("`{name}` shares prefixes and takes no pieces that belong to one session"),
                (shared, "shared here"),
                "let both say `share prefixes`, or neither".to_owned(),
            ),
            (Some(shared), None) => (
                format!("a block of several sessions is nobody's in `{name}`, which shares no prefixes"),
                (shared, "shared here"),
                "let both say `share prefixes`, or neither".to_owned(),
            ),
            (Some(shared), Some(_)) => {
                let (block, block_there) = (self.names.pools[pool].block, self.names.pools[to].block);
                // A block that is missing is told where `share prefixes` stands.
                let (Some(block), Some(block_there)) = (block, block_there) else { return Err(Reported) };
                if ir::whole_blocks(block, block_there).is_none() {
                    (
                        format!("a block of {block} is no whole number of `{name}`'s, which have {block_there}"),
                        (shared, "shared here"),
                        format!("give `{name}` a block that divides {block}"),
                    )
                } else if read.iter().any(|expr| expr.any(&ir::Expr::is_of_an_entry)) {
                    (
                        "a block of several sessions has no age and no owner whose attributes could be read".to_owned(),
                        (shared, "shared here"),
                        "its clauses read `size`, `now`, pools and stages".to_owned(),
                    )
                } else {
                    return Ok(());
                }
            }
        };
        Err(self.error("share-prefixes", target, message).note(note.0, note.1).help(help).done(self))
    }

    fn spill_pool(&mut self, own: u32, r: &'a ast::Ref, scope: ScopeId) -> Result<ir::PoolRef> {
        let word = r.name.text.as_str();
        let known = match (self.scopes.room_of(scope), &r.field) {
            (Room::Options { queue }, None) => {
                self.names.queues[queue].pools.get(word).copied().or_else(|| self.names.pool_of.get(word).copied())
            }
            (_, None) => self.names.pool_of.get(word).copied(),
            (_, Some(field)) => self.names.pool_of.get(&format!("{word}.{}", field.text)).copied(),
        };
        if let (Some(pool), None) = (known, &r.index) {
            let size = self.names.pools[pool].size.unwrap_or(1);
            if size != 1 && size != own {
                let (name, span) = (self.names.pools[pool].name.clone(), self.names.pools[pool].declared.name.span);
                return Err(self
                    .error("pairing", r.span, format!("a pool of {own} can't spill into `{name}` of {size}"))
                    .note(span, "declared here")
                    .help("give both one size, or name one member")
                    .done(self));
            }
            return Ok(ir::PoolRef { pool: pool as u32, member: None });
        }
        self.pool_ref(r, scope, Clause::Spill, Doing::Names("spill"))
    }

    fn spill_stage(&mut self, own: u32, r: &'a ast::Ref, scope: ScopeId) -> Result<ir::StageRef> {
        if r.index.is_none()
            && r.field.is_none()
            && let Some(&stage) = self.names.stage_of.get(r.name.text.as_str())
        {
            let known = &self.names.stages[stage];
            let size = known.size.unwrap_or(1);
            if size != 1 && size != own {
                let (name, span) = (known.name.clone(), known.span);
                return Err(self
                    .error("pairing", r.span, format!("a pool of {own} can't pair up with `{name}` of {size}"))
                    .note(span, "declared here")
                    .help("give both one size, or name one member")
                    .done(self));
            }
            return Ok(ir::StageRef { stage: stage as u32, member: None });
        }
        self.stage_ref(r, scope, Clause::Spill, Doing::Names("via"))
    }

    /// All stages.
    pub(crate) fn link_stages(&mut self) -> Result<Vec<ir::Stage>> {
        self.check_latencies();
        let linked: Vec<_> = (0..self.names.stages.len()).map(|s| self.link_stage(s)).collect();
        linked.into_iter().collect()
    }

    fn link_stage(&mut self, stage: usize) -> Result<ir::Stage> {
        let known = &self.names.stages[stage];
        let (queue, kind, span) = (known.queue, known.kind, known.span);
        let scope = self.options_scope(queue);
        let kind = match kind {
            Kind::Latency => ir::StageKind::Delay,
            Kind::Written(written) => match &written.kind {
                StageKindKind::Delay => ir::StageKind::Delay,
                StageKindKind::Fifo(None) => ir::StageKind::Fifo { servers: 1 },
                StageKindKind::Fifo(Some(e)) => ir::StageKind::Fifo { servers: self.servers(e)? },
                StageKindKind::Ps(rate) => {
                    let linked = self.expr(rate, scope, Clause::Rate)?;
                    if let Some(value) = fold::value(&linked, &self.lists)
                        && !(value >= 0.0 && value.is_finite())
                    {
                        return Err(self
                            .error(
                                "bad-constant",
                                rate.span,
                                format!(
                                    "a rate of {value} is not a finite amount of work in a unit of time",
                                    value = fold::show(value)
                                ),
                            )
                            .help("a positive number: work units in one unit of time")
                            .done(self));
                    }
                    ir::StageKind::Ps { rate: linked }
                }
                StageKindKind::Step(options) => {
                    ir::StageKind::Step(Box::new(self.step(stage, options, written.span, scope)?))
                }
            },
        };
        let _ = span;
        let known = &self.names.stages[stage];
        Ok(ir::Stage { name: known.name.clone(), size: known.size, kind, shared: false })
    }

    fn servers(&mut self, e: &'a ast::Expr) -> Result<u32> {
        let value = self.constant(e, "the number of servers")?;
        if value >= 1.0 && value.fract() == 0.0 && value <= f64::from(u32::MAX) {
            return Ok(value as u32);
        }
        Err(self
            .error(
                "bad-constant",
                e.span,
                format!("a `fifo` has a whole number of servers, at least 1, not {value}", value = fold::show(value)),
            )
            .done(self))
    }

    fn step(&mut self, stage: usize, options: &'a [ast::StepOption], span: Span, scope: ScopeId) -> Result<ir::Step> {
        let number = |value: f64| Ok(ir::Expr::Number(Number(value)));
        let mut seen: BTreeMap<&'static str, Span> = BTreeMap::new();
        let (mut budget, mut chunk, mut cost) = (number(f64::INFINITY), number(0.0), None);
        let mut memory = Ok(None);
        let mut asynchronous = Ok(None);
        let mut serve = Ok(ir::Serve { exclusive_prefill: false, only: None, by: Vec::new() });
        for option in options {
            let word = match &option.kind {
                StepOptionKind::Budget(_) => "budget",
                StepOptionKind::Cost(_) => "cost",
                StepOptionKind::Chunk(_) => "chunk",
                StepOptionKind::Memory(_) => "memory",
                StepOptionKind::Serve(_) => "serve",
                StepOptionKind::Asynchronous(..) => "asynchronous",
            };
            if let Some(&first) = seen.get(word) {
                self.error("repeated", option.span, format!("`{word}` is given twice"))
                    .note(first, "first here")
                    .help("keep one")
                    .done(self);
                continue;
            }
            seen.insert(word, option.span);
            match &option.kind {
                StepOptionKind::Budget(e) => budget = self.expr(e, scope, Clause::Budget),
                StepOptionKind::Chunk(e) => chunk = self.expr(e, scope, Clause::Chunk),
                StepOptionKind::Cost(e) => cost = Some(self.expr(e, scope, Clause::Cost)),
                StepOptionKind::Memory(r) => memory = self.memory(stage, r, scope).map(Some),
                StepOptionKind::Serve(rule) => serve = self.serve_rule(rule, scope),
                StepOptionKind::Asynchronous(e, fenced) => {
                    asynchronous = self.whether(e).map(|yes| yes.then_some(ir::Asynchronous { fenced: *fenced }));
                }
            }
        }
        let Some(cost) = cost else {
            return Err(self
                .error("cost-missing", span, "a `step` stage needs a `cost`")
                .label("how long is an iteration?")
                .help("write `cost 1;`, or a function of `tokens`, `kv_decode`, …")
                .done(self));
        };
        Ok(ir::Step {
            budget: budget?,
            chunk: chunk?,
            cost: cost?,
            memory: memory?,
            serve: serve?,
            asynchronous: asynchronous?,
        })
    }

    /// The 1 or 0 of `asynchronous`.
    fn whether(&mut self, e: &'a ast::Expr) -> Result<bool> {
        let value = self.constant(e, "whether steps are planned ahead")?;
        if value == 0.0 || value == 1.0 {
            return Ok(value == 1.0);
        }
        let message = format!("`asynchronous` is 1 or 0, not {}", fold::show(value));
        Err(self.error("bad-constant", e.span, message).done(self))
    }

    fn serve_rule(&mut self, rule: &'a ServeRule, scope: ScopeId) -> Result<ir::Serve> {
        let mut serve = ir::Serve { exclusive_prefill: false, only: None, by: Vec::new() };
        let mut rule = rule;
        if let ServeRule::Only(p, rest) = rule {
            serve.only = Some(self.expr(p, scope, Clause::ServeOnly)?);
            match rest {
                Some(rest) => rule = rest,
                None => return Ok(serve),
            }
        }
        match rule {
            ServeRule::Admission => {}
            ServeRule::By(keys) => serve.by = self.keys(keys, scope, Clause::ServeKey)?,
            ServeRule::DecodeFirst => {
                let number = |value: f64| Box::new(ir::Expr::Number(Number(value)));
                let decoding = Box::new(ir::Expr::Context(ir::Context::Decoding));
                serve.by = vec![ir::Expr::If(decoding, number(0.0), number(1.0))];
            }
            ServeRule::ExclusivePrefill => serve.exclusive_prefill = true,
            ServeRule::Only(p, _) => {
                return Err(self.error("repeated", p.span, "`only` is given twice").done(self));
            }
        }
        Ok(serve)
    }

    fn memory(&mut self, stage: usize, r: &'a ast::Ref, scope: ScopeId) -> Result<u32> {
        if let Some(index) = &r.index {
            return Err(self
                .error("pairing", r.span, "`memory` names a family, not a member")
                .note(index.span, "this index")
                .help(format!("write `memory {}`: member k goes with member k", r.name.text))
                .done(self));
        }
        let word = r.name.text.as_str();
        let own = match self.scopes.room_of(scope) {
            Room::Options { queue } => self.names.queues[queue].pools.get(word).copied(),
            _ => None,
        };
        let found = match &r.field {
            None => own.or_else(|| self.names.pool_of.get(word).copied()),
            Some(field) => self.names.pool_of.get(&format!("{word}.{}", field.text)).copied(),
        };
        let pool = match found {
            Some(pool) => pool,
            None => match self.pool_ref(r, scope, Clause::Value, Doing::Names("memory")) {
                Ok(pool) => pool.pool as usize,
                Err(Reported) => return Err(Reported),
            },
        };
        let (have, want) = (self.names.pools[pool].size.unwrap_or(1), self.names.stages[stage].size.unwrap_or(1));
        if have != 1 && have != want {
            let (name, span) = (self.names.pools[pool].name.clone(), self.names.pools[pool].declared.name.span);
            return Err(self
                .error("pairing", r.span, format!("a stage of {want} can't pair up with `{name}` of {have}"))
                .note(span, "declared here")
                .help("give both one size, or use a single pool for all members")
                .done(self));
        }
        Ok(pool as u32)
    }
}
