//! Work on stages: `run`, the serving forms, and transfers.
//!
//! A form finds its stage: the queue's own engine, the stage of its name above, or the
//! only engine above. A flow over several stages takes `ps` stages of constant rate,
//! which are shared from then on.

use serq_ir as ir;

use crate::ast;
use crate::fold;
use crate::link::{Linker, Part};
use crate::moment::Clause;
use crate::reference::Doing;
use crate::resolve::{Kind, Reported, Result};
use crate::scope::{Room, ScopeId, Thunk};
use crate::source::Span;
use crate::statement::written_as;

/// What a run does on its stages.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) mode: Option<ir::Mode>,
    pub(crate) work: &'a ast::Expr,
    pub(crate) then: Option<&'a ast::Then>,
    pub(crate) growing: Option<&'a ast::Ref>,
}

impl<'a> Work<'a> {
    /// Plain work.
    pub(crate) fn of(work: &'a ast::Expr) -> Self {
        Self { mode: None, work, then: None, growing: None }
    }
}

/// What a transfer moves, and how.
#[derive(Clone, Copy)]
pub(crate) struct Moved<'a> {
    pub(crate) index: Option<&'a ast::Expr>,
    pub(crate) on: &'a [ast::Ref],
    pub(crate) work: &'a ast::Expr,
    pub(crate) from: &'a ast::Ref,
    pub(crate) to: &'a ast::Ref,
    pub(crate) load: &'a ast::Expr,
}

/// By judgement: each is written out.
const RETRIES_MOST: f64 = 16.0;

impl<'a> Linker<'a> {
    pub(crate) fn run(
        &mut self,
        stages: &'a [ast::Ref],
        work: Work<'a>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let mut refs = Vec::new();
        let mut spans = Vec::new();
        if stages.is_empty() {
            let at = self.places.parenthesis(span);
            refs.push(self.own_stage("run", at, scope));
            spans.push(at);
        }
        for r in stages {
            refs.push(self.stage_ref(r, scope, Clause::Value, Doing::Names("run")));
            spans.push(r.span);
        }
        self.run_on(refs, &spans, work, span, scope, out)
    }

    /// A run on stages already found.
    pub(crate) fn run_on(
        &mut self,
        refs: Vec<Result<ir::StageRef>>,
        spans: &[Span],
        work: Work<'a>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let Work { mode, work, then, growing } = work;
        let work = self.expr(work, scope, Clause::Work);
        let then = then.map(|then| self.then(then, scope)).transpose();
        let grown = growing.map(|r| self.pool_ref(r, scope, Clause::Value, Doing::Allocates("growing"))).transpose();
        let stages = refs.into_iter().collect::<Result<Vec<_>>>()?;
        if stages.len() > 1 {
            self.check_flow(&stages, spans, mode, growing, span)?;
        } else {
            self.check_mode(&stages[0], spans[0], mode, growing, span)?;
        }
        let run = ir::RunStmt { stages, mode, work: work?, growing: grown?, then: then?, reads: None };
        let kind = ir::StmtKind::Run(Box::new(run));
        let at = self.push(out, span, kind);
        for (k, span) in spans.iter().enumerate() {
            self.places.remember(at, Part::Reference(k), *span);
        }
        if let Some(growing) = growing {
            self.places.remember(at, Part::Second, growing.span);
        }
        Ok(())
    }

    /// How a prefill goes on. Its engine may be ahead of what is noted in between, so that is
    /// nothing that could hold it up.
    fn then(&mut self, then: &'a ast::Then, scope: ScopeId) -> Result<ir::Then> {
        let body = self.inner_block(&then.body, scope);
        let work = self.expr(&then.work, scope, Clause::Work);
        if let Some(stmt) = ir::beyond_notes(&body) {
            let span = self.places.span(stmt.at, Part::Whole);
            return Err(self
                .error(
                    "misplaced-statement",
                    span,
                    "between a prefill and its decode are only `set`, `mark`, `observe` and `branch`",
                )
                .help("the decode goes on meanwhile: write this behind it, or two runs")
                .done(self));
        }
        Ok(ir::Then { body, work: work? })
    }

    pub(crate) fn check_mode(
        &mut self,
        stage: &ir::StageRef,
        at: Span,
        mode: Option<ir::Mode>,
        growing: Option<&'a ast::Ref>,
        span: Span,
    ) -> Result<()> {
        let Some(known) = self.names.stages.get(stage.stage as usize) else { return Ok(()) };
        let (name, word, declared, step) = (known.name.clone(), known.word(), known.span, known.is_step());
        if step && mode.is_none() {
            return Err(self
                .error("wrong-mode", at.to(span), format!("a run on step stage `{name}` says `prefill` or `decode`"))
                .note(declared, "a `step` stage")
                .help(format!("write `run {name} prefill (n)` or `run {name} decode (n)`"))
                .done(self));
        }
        if !step && mode.is_some() {
            return Err(self
                .error(
                    "wrong-mode",
                    at.to(span),
                    format!("`{name}` is a `{word}` stage and knows no `prefill` or `decode`"),
                )
                .note(declared, "declared here")
                .help(format!("write `run {name} (w)`"))
                .done(self));
        }
        if !step && let Some(growing) = growing {
            return Err(self
                .error(
                    "wrong-mode",
                    at.to(span),
                    format!("`growing {}` on `{name}`, a `{word}` stage", written_as(growing)),
                )
                .note(growing.span, "only a `step` stage serves tokens that grow a pool")
                .help("take the units in the hold, or `grow` them")
                .done(self));
        }
        Ok(())
    }

    pub(crate) fn check_flow(
        &mut self,
        stages: &[ir::StageRef],
        spans: &[Span],
        mode: Option<ir::Mode>,
        growing: Option<&'a ast::Ref>,
        span: Span,
    ) -> Result<()> {
        if mode.is_some() || growing.is_some() {
            return Err(self
                .error(
                    "flow-stage",
                    spans[0].to(span),
                    "a run over several stages has no `prefill`, `decode` or `growing`",
                )
                .help("those are for one `step` stage")
                .done(self));
        }
        let mut bad = false;
        let mut refused: Vec<u32> = Vec::new();
        for (k, stage) in stages.iter().enumerate() {
            if refused.contains(&stage.stage) {
                continue;
            }
            let Some(known) = self.names.stages.get(stage.stage as usize) else { continue };
            let (name, word, declared) = (known.name.clone(), known.word(), known.span);
            if stages[..k].iter().any(|s| s.stage == stage.stage) {
                bad = true;
                self.error("flow-stage", spans[k], format!("`{name}` is named twice in one run"))
                    .help("a flow crosses each link once; two members of one array need two arrays")
                    .done(self);
                continue;
            }
            let Kind::Written(ast::StageKind { kind: ast::StageKindKind::Ps(rate), .. }) = known.kind else {
                bad = true;
                refused.push(stage.stage);
                self.error(
                    "flow-stage",
                    spans[k],
                    format!("`{name}` is a `{word}` stage; a run over several stages takes `ps` stages"),
                )
                .note(declared, "declared here")
                .help(format!("a link of constant rate is `{name} : ps(1e5)`"))
                .done(self);
                continue;
            };
            if self.constant_rate(rate).is_none() {
                bad = true;
                self.error(
                    "flow-stage",
                    spans[k],
                    format!("the rate of `{name}` must be a positive constant to be shared"),
                )
                .note(rate.span, "this rate")
                .done(self);
                continue;
            }
            self.names.stages[stage.stage as usize].shared = true;
        }
        if bad {
            return Err(Reported);
        }
        self.multi_run = self.multi_run.or(Some(span));
        Ok(())
    }

    /// A `ps` rate that is a positive number.
    pub(crate) fn constant_rate(&mut self, rate: &'a ast::Expr) -> Option<f64> {
        let scope = self.program;
        let findings = (self.findings.list.len(), self.findings.errors);
        let linked = self.expr(rate, scope, Clause::Rate);
        debug_assert!(linked.is_ok() || self.findings.errors >= findings.1);
        let value = fold::value(&linked.ok()?, &self.lists)?;
        (value > 0.0 && !value.is_nan()).then_some(value)
    }

    /// The stage of the queue a statement stands in.
    pub(crate) fn own_stage(&mut self, word: &str, at: Span, scope: ScopeId) -> Result<ir::StageRef> {
        let Room::Entry { queue, .. } = self.scopes.room_of(scope) else {
            return Err(self
                .error("no-stage", at, format!("`{word}` names no stage"))
                .help(format!("write `{word} STAGE (w);`; only an entry has a stage of its own"))
                .done(self));
        };
        let Some(stage) = self.names.queues[queue].stage else {
            return Err(self.no_serve(at, queue));
        };
        let member = self.own_member(scope, Clause::Value)?;
        Ok(ir::StageRef { stage: stage as u32, member })
    }

    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    pub(crate) fn form(
        &mut self,
        form: ast::Form,
        index: Option<&'a ast::Expr>,
        on: Option<&'a ast::Ref>,
        work: Work<'a>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let (word, mode) = match form {
            ast::Form::Prefill => ("prefill", Some(ir::Mode::Prefill)),
            ast::Form::Decode => ("decode", Some(ir::Mode::Decode)),
            ast::Form::Tool => ("tool", None),
        };
        let (stage, at) = match on {
            Some(on) => (self.stage_ref(on, scope, Clause::Value, Doing::Names("run")), on.span),
            None => (self.stage_of_form(word, index, span, scope), span),
        };
        // A stage that happens to be called `prefill` need not be an engine.
        let step = match &stage {
            Ok(s) => self.names.stages.get(s.stage as usize).is_none_or(|s| s.is_step()),
            Err(Reported) => true,
        };
        let mode = mode.filter(|_| step);
        self.run_on(vec![stage], &[at], Work { mode, ..work }, span, scope, out)
    }

    /// The stage a serving form means: the queue's own engine, the stage of that
    /// name above, or the only engine above.
    pub(crate) fn stage_of_form(
        &mut self,
        word: &'static str,
        index: Option<&'a ast::Expr>,
        span: Span,
        scope: ScopeId,
    ) -> Result<ir::StageRef> {
        let item = match self.scopes.room_of(scope) {
            Room::Program { item } => item,
            Room::Entry { queue, .. } => {
                let own = self.names.queues[queue].stage;
                if matches!(word, "prefill" | "decode")
                    && let Some(own) = own
                    && self.names.stages[own].is_step()
                {
                    if let Some(index) = index {
                        return Err(self
                            .error(
                                "index-not-needed",
                                index.span,
                                format!("`{word}` without `on` is the member's own stage and takes no index"),
                            )
                            .help(format!("write `{word} (n);`"))
                            .done(self));
                    }
                    return self.own_stage(word, span, scope);
                }
                self.names.queues[queue].item
            }
            Room::Options { queue } => self.names.queues[queue].item,
        };
        let in_entry = matches!(self.scopes.room_of(scope), Room::Entry { .. });
        let words: &[&str] = if word == "transfer" { &["link", "transfer"] } else { &[word] };
        let mut candidates: Vec<usize> = Vec::new();
        for (k, stage) in self.names.stages.iter().enumerate() {
            if stage.item >= item || stage.queue.is_some() && in_entry {
                continue;
            }
            let engine = matches!(word, "prefill" | "decode") && stage.is_step() && !in_entry;
            if words.contains(&stage.name.as_str()) || engine {
                candidates.push(k);
            }
        }
        // A stage of the form's own name is meant before any engine.
        if let Some(&named) = candidates.iter().find(|&&k| self.names.stages[k].name == word)
            && word != "transfer"
        {
            candidates = vec![named];
        }
        match candidates.as_slice() {
            [stage] => {
                let (stage, size) = (*stage, self.names.stages[*stage].size);
                let name = self.names.stages[stage].name.clone();
                let index = index.map(|expr| Thunk { expr, scope });
                let member = self.member(index, size, &name, "stage", span, Clause::Value)?;
                Ok(ir::StageRef { stage: stage as u32, member })
            }
            [] => {
                let below = self.names.stages.iter().find(|s| words.contains(&s.name.as_str()));
                let e = self.error("no-stage", span, format!("no stage declared above plays `{word}`"));
                let e = match below {
                    Some(s) => e.note(s.span, "this one is declared below"),
                    None => e,
                };
                let names = words.join("` or `");
                Err(e
                    .help(match word {
                        "prefill" | "decode" => {
                            format!("declare a `step` stage above, or write `{word} on STAGE (n);`")
                        }
                        _ => format!("name a stage `{names}` above, or write `{word} on STAGE …`"),
                    })
                    .done(self))
            }
            several => {
                let names: Vec<&str> = several.iter().map(|&k| self.names.stages[k].name.as_str()).collect();
                Err(self
                    .error("several-stages", span, format!("several stages play `{word}`: {}", names.join(", ")))
                    .help(format!("say which: `{word} on {} …`", names[0]))
                    .done(self))
            }
        }
    }

    /// `transfer`: what it moves by, then its load and release; with a policy, what is done where that fails.
    pub(crate) fn transfer(
        &mut self,
        moved: Moved<'a>,
        fails: Option<&'a ast::Expr>,
        otherwise: Option<&'a ast::Otherwise>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let Moved { index, on, work, from, to, load } = moved;
        let source = self.pool_ref(from, scope, Clause::Value, Doing::GivesBack("from"));
        let target = self.pool_ref(to, scope, Clause::Value, Doing::Allocates("to"));
        let units = self.expr(load, scope, Clause::Amount("load"));
        let mut moves = Vec::new();
        let runs = if on.is_empty() {
            match self.relation_of(index, from, span, scope)? {
                Some(relation) => self.run_relation(&relation, work, from, span, scope, &mut moves),
                None => {
                    let stage = self.stage_of_form("transfer", index, span, scope);
                    self.run_on(vec![stage], &[span], Work::of(work), span, scope, &mut moves)
                }
            }
        } else {
            let mut refs = Vec::new();
            let mut spans = Vec::new();
            for r in on {
                let stage = self.stage_ref(r, scope, Clause::Value, Doing::Names("on"));
                if let Ok(stage) = &stage {
                    self.link_latency(stage, r.span, &mut moves);
                }
                refs.push(stage);
                spans.push(r.span);
            }
            self.run_on(refs, &spans, Work::of(work), span, scope, &mut moves)
        };
        let fails = fails.map(|p| self.chance_of_failure(p, scope)).transpose();
        let (source, target, units, fails) = (source?, target?, units?, fails?);
        runs?;
        let mut lands = ir::Block::new();
        let at = self.push(&mut lands, to.span, ir::StmtKind::Load { pool: target, units });
        self.places.remember(at, Part::Reference(0), to.span);
        let mut gives_back = ir::Block::new();
        let at = self.push(&mut gives_back, from.span, ir::StmtKind::Release { pool: source.clone(), after: None });
        let said = self.said_at(from, scope);
        self.places.remember(at, Part::Reference(0), said);
        let Some(otherwise) = otherwise else {
            if fails.is_some() {
                return Err(self
                    .error("failure-policy", span, "this transfer may fail, and nothing says what is done then")
                    .help("write `else recompute`, `else error`, or `else retry 2 then` and one of the two")
                    .done(self));
            }
            out.append(&mut moves);
            out.append(&mut lands);
            out.append(&mut gives_back);
            return Ok(());
        };
        let retries = match &otherwise.retries {
            Some(count) => self.retries(count)?,
            None => 0,
        };
        let last = moves.len() - 1;
        for (nth, stmt) in moves.iter_mut().enumerate() {
            if let ir::StmtKind::Run(run) = &mut stmt.kind {
                run.reads = Some(ir::Reads { pool: source.clone(), fails: fails.clone().filter(|_| nth == last) });
            }
        }
        let failed = || ir::Expr::Context(ir::Context::Failed);
        let branch = |then, otherwise| ir::StmtKind::Branch { test: failed(), chance: false, then, otherwise };
        out.extend(moves.iter().cloned());
        for _ in 0..retries {
            self.push(out, span, branch(moves.clone(), ir::Block::new()));
        }
        let mut instead = gives_back.clone();
        if otherwise.recomputes {
            let stage = self.stage_of_form("prefill", None, otherwise.last, scope);
            let work = Work { mode: Some(ir::Mode::Prefill), work: load, then: None, growing: Some(to) };
            self.run_on(vec![stage], &[otherwise.last], work, otherwise.last, scope, &mut instead)?;
        } else {
            self.push(&mut instead, otherwise.last, ir::StmtKind::Fail);
        }
        lands.append(&mut gives_back);
        self.push(out, span, branch(instead, lands));
        Ok(())
    }

    /// `from P fails (p)` of the run that was pushed last.
    pub(crate) fn run_reads(&mut self, reads: &'a ast::Reads, scope: ScopeId, out: &mut ir::Block) -> Result<()> {
        let pool = self.pool_ref(&reads.pool, scope, Clause::Value, Doing::GivesBack("from"));
        let fails = reads.fails.as_ref().map(|p| self.chance_of_failure(p, scope)).transpose();
        let (pool, fails) = (pool?, fails?);
        if let Some(ir::Stmt { kind: ir::StmtKind::Run(run), .. }) = out.last_mut() {
            if run.mode.is_some() {
                return Err(self
                    .error("failure-policy", reads.pool.span, "an engine's run reads no other pool")
                    .help("`from` is for the run of a link: `run LINK (w) from POOL;`")
                    .done(self));
            }
            run.reads = Some(ir::Reads { pool, fails });
        }
        Ok(())
    }

    fn chance_of_failure(&mut self, p: &'a ast::Expr, scope: ScopeId) -> Result<ir::Expr> {
        let chance = self.expr(p, scope, Clause::Chance)?;
        match fold::value(&chance, &[]) {
            Some(value) if !(0.0..=1.0).contains(&value) => Err(self
                .error("failure-policy", p.span, format!("a probability of {}", fold::show(value)))
                .help("write one from 0 to 1")
                .done(self)),
            _ => Ok(chance),
        }
    }

    fn retries(&mut self, count: &'a ast::Expr) -> Result<usize> {
        let value = self.constant(count, "how often a transfer is tried again")?;
        if (1.0..=RETRIES_MOST).contains(&value) && value.fract() == 0.0 {
            return Ok(value as usize);
        }
        let message = format!("{} retries: a whole number from 1 to {RETRIES_MOST} is meant", fold::show(value));
        Err(self.error("failure-policy", count.span, message).done(self))
    }
}
