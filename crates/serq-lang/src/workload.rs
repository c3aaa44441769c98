//! Sessions and what brings them: the workload, the session's three shapes, and
//! the run's settings.

use std::collections::BTreeMap;

use serq_ir as ir;
use serq_ir::json::Number;

use crate::ast::{self, Item, RunFieldKind, StmtKind, WorkloadItem};
use crate::fold;
use crate::link::Linker;
use crate::moment::Clause;
use crate::resolve::{Reported, Result};
use crate::scope::Room;
use crate::source::Span;

impl<'a> Linker<'a> {
    /// The workload and the session.
    pub(crate) fn link_sessions(&mut self, items: &[&'a Item]) -> (ir::Workload, ir::Block) {
        let mut workload: Option<(usize, &'a ast::Workload)> = None;
        let mut session: Option<(usize, &'a ast::SessionBlock)> = None;
        let mut server: Option<&'a ast::SessionBlock> = None;
        for (at, item) in items.iter().enumerate() {
            match item {
                Item::Workload(w) => match workload {
                    Some((_, first)) => self.second(w.keyword_span, "workload", first.keyword_span),
                    None => workload = Some((at, w)),
                },
                Item::Session(s) => match session {
                    Some((_, first)) => self.second(s.keyword_span, "session", first.keyword_span),
                    None => session = Some((at, s)),
                },
                Item::Server(s) => match server {
                    Some(first) => self.second(s.keyword_span, "server", first.keyword_span),
                    None => server = Some(s),
                },
                _ => {}
            }
        }
        self.request.server = server;
        let (linked, inner) = match workload {
            Some((at, w)) => self.link_workload(w, at),
            None => (empty_workload(), None),
        };
        let mut body = ir::Block::new();
        if let (Some(inner), Some((_, top))) = (inner, session) {
            let at = server.map_or(top.keyword_span, |s| s.keyword_span);
            self.error("two-sessions", at, "the workload has the session, and there is another at the top")
                .note(inner.1.keyword_span, "the workload's")
                .note(top.keyword_span, "the program's")
                .help("one program has one session")
                .done(self);
        }
        match (inner, session) {
            (Some((at, inner)), _) => {
                self.request.allowed = true;
                let scope = self.scopes.room(Room::Program { item: at }, Vec::new());
                self.block(&inner.body, scope, &mut body);
                self.request.allowed = false;
                // An unread request is a mistake of its own place only once.
            }
            (None, Some((at, top))) => {
                let scope = self.scopes.room(Room::Program { item: at }, Vec::new());
                self.block(&top.body, scope, &mut body);
            }
            (None, None) => {}
        }
        if let Some(server) = server
            && !self.request.server_used
        {
            self.error("server-unused", server.keyword_span, "no session requests this server")
                .help("write `workload { … session { … request; … } }`")
                .done(self);
            let scope = self.program;
            self.serve(&server.body, scope, &mut ir::Block::new());
        }
        (linked, body)
    }

    fn second(&mut self, span: Span, what: &str, first: Span) {
        self.error("repeated", span, format!("a second `{what}`"))
            .note(first, "first here")
            .help("a program has one")
            .done(self);
    }

    fn link_workload(
        &mut self,
        workload: &'a ast::Workload,
        at: usize,
    ) -> (ir::Workload, Option<(usize, &'a ast::SessionBlock)>) {
        let mut linked = empty_workload();
        let mut session: Option<&'a ast::SessionBlock> = None;
        let mut seen: BTreeMap<&'static str, Span> = BTreeMap::new();
        for item in &workload.items {
            let (word, span) = match item {
                WorkloadItem::Arrive(_, span) => ("arrive", *span),
                WorkloadItem::Trace { span, .. } => ("trace", *span),
                WorkloadItem::Hidden(_, _) => continue,
                WorkloadItem::Prefix(_, span) => ("prefix", *span),
                WorkloadItem::Init(b) => ("init", b.span),
                WorkloadItem::Turn(b) => ("turn", b.span),
                WorkloadItem::Request(_, span) => ("request", *span),
                WorkloadItem::Session(s) => ("session", s.keyword_span),
            };
            if let Some(&first) = seen.get(word) {
                self.error("repeated", span, format!("`{word}` is given twice"))
                    .note(first, "first here")
                    .help("keep one")
                    .done(self);
                continue;
            }
            seen.insert(word, span);
            match item {
                WorkloadItem::Arrive(law, _) => {
                    if let Ok(arrive) = self.arrive(law) {
                        linked.arrive = arrive;
                    }
                }
                WorkloadItem::Trace { path, ordered, span } => {
                    if path.trim().is_empty() {
                        self.error("bad-run", *span, "the trace has no file name").done(self);
                    }
                    linked.trace = Some(ir::Trace { path: path.clone(), ordered: *ordered });
                }
                WorkloadItem::Hidden(..) => {}
                WorkloadItem::Prefix(parts, span) => linked.prefix = self.prefix(parts, *span, at).ok(),
                WorkloadItem::Init(b) => linked.init = self.assignments(b, "init", at),
                WorkloadItem::Turn(b) => linked.turn = self.assignments(b, "turn", at),
                // Whoever is simulated brings what `turn` says.
                WorkloadItem::Request(b, _) => drop(self.assignments(b, "request", at)),
                WorkloadItem::Session(s) => session = Some(s),
            }
        }
        if let Some(path) = self.overrides.trace.clone() {
            match &mut linked.trace {
                Some(trace) => trace.path = path,
                None => linked.trace = Some(ir::Trace { path, ordered: false }),
            }
        }
        let replays = workload.items.iter().find_map(|item| match item {
            WorkloadItem::Arrive(ast::Arrive::Trace(_, word), _) => Some(*word),
            _ => None,
        });
        if let (None, Some(word)) = (&linked.trace, replays) {
            self.error("trace-missing", word, "arrivals of a trace, and the workload names none")
                .help("add `trace \"requests.csv\";`")
                .done(self);
        }
        (linked, session.map(|s| (at, s)))
    }

    /// `prefix (group, tokens);`
    fn prefix(&mut self, parts: &'a [ast::Expr], span: Span, item: usize) -> Result<ir::Prefix> {
        if parts.len() != 2 {
            return Err(self
                .error("wrong-argument-count", span, format!("`prefix` takes 2 values, got {}", parts.len()))
                .help("which prefix, and how many tokens it has: `prefix (group, 1024);`")
                .done(self));
        }
        let scope = self.scopes.room(Room::Program { item }, Vec::new());
        let linked = self.keys(parts, scope, Clause::Prefix)?;
        let shares = |pool: &crate::resolve::Pool<'_>| {
            pool.declared.options.iter().any(|option| matches!(option.kind, ast::PoolOptionKind::SharePrefixes(_)))
        };
        if !self.names.pools.iter().any(shares) {
            return Err(self
                .error("share-prefixes", span, "no pool shares prefixes, so this one is nobody's")
                .help("add `share prefixes;` to the pool whose blocks it is about")
                .done(self));
        }
        let [group, tokens] = <[ir::Expr; 2]>::try_from(linked).expect("two are linked");
        Ok(ir::Prefix { group, tokens })
    }

    /// `init` and `turn`: `set` and `observe` only.
    fn assignments(&mut self, block: &'a ast::Block, what: &str, item: usize) -> ir::Block {
        let errors = self.findings.errors;
        self.only_assignments(block, what, 0);
        let scope = self.scopes.room(Room::Program { item }, Vec::new());
        let mut out = ir::Block::new();
        if self.findings.errors == errors {
            self.block(block, scope, &mut out);
        }
        out.retain(|s| matches!(s.kind, ir::StmtKind::Set { .. } | ir::StmtKind::Observe { .. }));
        out
    }

    fn only_assignments(&mut self, block: &'a ast::Block, what: &str, depth: usize) {
        for stmt in &block.stmts {
            match &stmt.kind {
                StmtKind::Set(..) | StmtKind::Observe(..) => {}
                StmtKind::Use(name, _) if depth < ir::DEPTH_MAX => {
                    if let Some(def) = self.names.defs.get(name.text.as_str())
                        && let ast::DefBody::Block(body) = &def.def.body
                        && !self.bad_definitions.contains(name.text.as_str())
                    {
                        self.only_assignments(body, what, depth + 1);
                    }
                }
                _ => {
                    let span = match &stmt.kind {
                        StmtKind::Run { stages, .. } if !stages.is_empty() => stages[0].span.to(stmt.span),
                        _ => stmt.span,
                    };
                    self.error(
                        "misplaced-statement",
                        span,
                        format!("a workload's `{what}` takes only `set` and `observe`"),
                    )
                    .help("whatever takes time or decides is the session's")
                    .done(self);
                }
            }
        }
    }

    /// The run's settings; what the caller gives wins.
    pub(crate) fn link_run(&mut self, items: &[&'a Item], workload: &ir::Workload) -> Result<ir::Run> {
        let mut given: BTreeMap<&'static str, (&'a ast::RunField, Result<f64>)> = BTreeMap::new();
        let mut block: Option<Span> = None;
        for item in items {
            let Item::Run(run) = item else { continue };
            block = block.or(Some(run.keyword_span));
            for field in &run.fields {
                let word = match field.kind {
                    RunFieldKind::Horizon => "horizon",
                    RunFieldKind::Warmup => "warmup",
                    RunFieldKind::Seed => "seed",
                    RunFieldKind::Arrivals => "arrivals",
                };
                if let Some((first, _)) = given.get(word) {
                    let first = first.span;
                    self.error("repeated", field.span, format!("`{word}` is given twice"))
                        .note(first, "first here")
                        .help("keep one")
                        .done(self);
                    continue;
                }
                let value = self.constant(
                    &field.value,
                    match field.kind {
                        RunFieldKind::Horizon => "`horizon`",
                        RunFieldKind::Warmup => "`warmup`",
                        RunFieldKind::Seed => "`seed`",
                        RunFieldKind::Arrivals => "`arrivals`",
                    },
                );
                given.insert(word, (field, value));
            }
        }
        let horizon = self.setting(
            &given,
            "horizon",
            self.overrides.horizon,
            |h| h > 0.0 && h.is_finite(),
            "positive and finite",
        );
        let warmup = self.setting(
            &given,
            "warmup",
            self.overrides.warmup,
            |w| w >= 0.0 && w.is_finite(),
            "finite and at least 0",
        );
        let whole = |n: f64| n >= 0.0 && n.fract() == 0.0 && n <= 9_007_199_254_740_992.0;
        let seed =
            self.setting(&given, "seed", self.overrides.seed.map(|_| 0.0), whole, "a whole number from 0 to 2^53");
        let some = |n: f64| n >= 1.0 && n.fract() == 0.0 && n <= 9_007_199_254_740_992.0;
        let arrivals = self.setting(
            &given,
            "arrivals",
            self.overrides.arrivals.map(|s| s as f64),
            some,
            "a whole number, at least 1",
        );
        let place = |word: &str| given.get(word).map(|(f, _)| f.value.span);
        if arrivals.is_ok_and(|a| a.is_some()) && !workload.arrive.is_open() && !self.broken {
            let at = if self.overrides.arrivals.is_some() { None } else { place("arrivals") };
            self.error("bad-run", at, "`arrivals` limits sessions that come one after another, and none do")
                .help("it goes with `poisson`, `bursts`, `renewal` and `trace`; `batch(n)` and `closed(n)` say their number themselves")
                .done(self);
        }
        let horizon = match horizon? {
            Some(h) => h,
            // A block that could not be read may have had one.
            None if self.broken => return Err(Reported),
            None => {
                let e = self.error("horizon-missing", block, "nothing says how long to run");
                let e = if block.is_some() {
                    e.help("add `horizon 1000;`")
                } else {
                    e.help("add `run { horizon 1000; }`, or give it with `--horizon`")
                };
                return Err(e.done(self));
            }
        };
        let warmup = warmup?.unwrap_or(0.0);
        if warmup >= horizon {
            let at = place("warmup").or(place("horizon"));
            return Err(self
                .error(
                    "bad-run",
                    at,
                    format!(
                        "the warm-up of {warmup} does not end before the horizon of {horizon}",
                        warmup = fold::show(warmup),
                        horizon = fold::show(horizon)
                    ),
                )
                .help("a warm-up of a tenth of the horizon is usual")
                .done(self));
        }
        Ok(ir::Run {
            horizon: Number(horizon),
            warmup: Number(warmup),
            seed: self.overrides.seed.unwrap_or(seed?.unwrap_or(1.0) as u64),
            arrivals: self.overrides.arrivals.or(arrivals?.map(|a| a as u64)),
        })
    }

    fn setting(
        &mut self,
        given: &BTreeMap<&'static str, (&'a ast::RunField, Result<f64>)>,
        word: &'static str,
        override_: Option<f64>,
        fits: impl Fn(f64) -> bool,
        range: &str,
    ) -> Result<Option<f64>> {
        let (value, span) = match (override_, given.get(word)) {
            (Some(value), _) => (value, None),
            (None, Some((field, value))) => ((*value)?, Some(field.value.span)),
            (None, None) => return Ok(None),
        };
        if fits(value) {
            return Ok(Some(value));
        }
        Err(self
            .error("bad-run", span, format!("a `{word}` of {value} is not {range}", value = fold::show(value)))
            .done(self))
    }
}

fn empty_workload() -> ir::Workload {
    ir::Workload { arrive: ir::Arrive::None, trace: None, prefix: None, init: Vec::new(), turn: Vec::new() }
}
