//! Checks over the linked session, where calls and definitions are written out.
//!
//! A linked statement knows its place, and [`crate::link::Places`] the spans of its
//! parts, so a finding points into the text that says it, however often that text
//! was written out.

use std::collections::BTreeSet;

use serq_ir::{self as ir, BuiltIn, Expr, StmtKind};

use crate::ast::{self, PoolOptionKind};
use crate::fold;
use crate::link::{Linker, Part};
use crate::source::Span;
use crate::stale;

/// All lints.
pub(crate) fn check(linker: &mut Linker<'_>, session: &ir::Block, workload: &ir::Workload) {
    // Statements left out because of other mistakes would make these say more than
    // is wrong.
    let whole = !linker.broken && !linker.gaps.order;
    let mut turn_sets: Vec<u32> = vec![BuiltIn::TurnNo as u32];
    if workload.trace.is_some() {
        turn_sets.extend(BuiltIn::New as u32..=BuiltIn::Forced as u32);
    }
    ir::each_stmt(&workload.turn, &mut |stmt| {
        if let StmtKind::Set { attribute, .. } = &stmt.kind {
            turn_sets.push(*attribute);
        }
    });
    Amounts { linker, holds: Vec::new(), leased: Vec::new(), whole, turn_sets }.session(session);
    if whole {
        check_legs(linker, session);
        stale::check(linker, session, workload);
        if !linker.gaps.time {
            check_loops(linker, session);
        }
    }
}

/// Does an expression read pools, stages, attributes, moments, or draw?
pub(crate) fn reads_state(e: &Expr) -> bool {
    e.any(&|e| {
        matches!(
            e,
            Expr::Pool(..) | Expr::Stage(..) | Expr::Price(..) | Expr::Attribute(_) | Expr::Context(_) | Expr::Draw(..)
        )
    })
}

/// Constant amounts, and what acts on a hold from outside of it.
struct Amounts<'l, 'a> {
    linker: &'l mut Linker<'a>,
    /// Pools of the enclosing holds, the innermost last.
    holds: Vec<Vec<ir::PoolRef>>,
    /// Pools some hold of the program leases.
    leased: Vec<ir::PoolRef>,
    /// Nothing was left out of the session.
    whole: bool,
    /// What a `turn;` sets.
    turn_sets: Vec<u32>,
}

impl Amounts<'_, '_> {
    fn session(mut self, session: &ir::Block) {
        let mut leased = Vec::new();
        ir::each_stmt(session, &mut |s| {
            if let StmtKind::Hold(hold) = &s.kind
                && let Some(lease) = &hold.lease
            {
                let pool = &hold.grabs[lease.grab as usize].pool;
                if !leased.contains(pool) {
                    leased.push(pool.clone());
                }
            }
        });
        self.leased = leased;
        self.block(session);
    }

    fn span(&self, stmt: &ir::Stmt, part: Part) -> Option<Span> {
        self.linker.places.span(stmt.at, part)
    }

    fn block(&mut self, block: &[ir::Stmt]) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Hold(hold) => self.hold(stmt, hold),
                StmtKind::Grow { pool, units } => {
                    self.inside(stmt, "grow", pool, Part::Reference(0));
                    self.amount(stmt, "grow", units, Part::Reference(0));
                }
                StmtKind::Load { pool, units } => {
                    self.inside(stmt, "load", pool, Part::Reference(0));
                    self.amount(stmt, "load", units, Part::Reference(0));
                }
                StmtKind::Release { pool, after } => self.reachable(stmt, pool, after.is_some()),
                StmtKind::Run(run) => {
                    self.amount(stmt, "run", &run.work, Part::Reference(0));
                    if let Some(pool) = &run.growing {
                        self.inside(stmt, "growing", pool, Part::Reference(0));
                    }
                    if let Some(then) = &run.then {
                        self.amount(stmt, "decode", &then.work, Part::Reference(0));
                    }
                }
                StmtKind::Branch { then, otherwise, .. } => {
                    self.block(then);
                    self.block(otherwise);
                }
                StmtKind::Loop { body } | StmtKind::Shielded { body } => self.block(body),
                StmtKind::Fork { body } => {
                    self.preempted_around(stmt);
                    // What is held around it is the session's.
                    let around = std::mem::take(&mut self.holds);
                    self.block(body);
                    self.holds = around;
                }
                _ => {}
            }
        }
    }

    /// A `fork` in a hold that runs again from its header when it was preempted.
    fn preempted_around(&mut self, stmt: &ir::Stmt) {
        let preempts =
            |pool: &&ir::PoolRef| {
                let pool = self.linker.names.pools.get(pool.pool as usize);
                pool.is_some_and(|pool| {
                    pool.declared.options.iter().rev().any(
                        |option| matches!(&option.kind, PoolOptionKind::Preempt(how) if *how != ast::Preempt::None),
                    )
                })
            };
        let Some(pool) = self.holds.iter().flatten().find(preempts) else { return };
        let name = self.linker.pool_name(pool);
        let declared = self.linker.names.pools[pool.pool as usize].declared.name.span;
        let span = self.span(stmt, Part::Whole).map(|s| Span { end: s.start + 4, ..s });
        self.linker
            .error("fork-preempted", span, format!("`fork` inside a hold of `{name}`, which may be preempted"))
            .label("the hold would run again from its header, and fork another leg")
            .note(declared, "this pool preempts")
            .help("fork before the hold, and `join` where the leg is needed")
            .done(self.linker);
    }

    fn amount(&mut self, stmt: &ir::Stmt, verb: &str, units: &Expr, part: Part) {
        if let Some(value) = fold::value(units, &self.linker.lists)
            && (value < 0.0 || value.is_nan())
        {
            let span = self.span(stmt, part);
            self.linker
                .error(
                    "bad-amount",
                    span,
                    format!("`{verb}` of {value}: an amount is a number, and not negative", value = fold::show(value)),
                )
                .done(self.linker);
        }
    }

    fn hold(&mut self, stmt: &ir::Stmt, hold: &ir::Hold) {
        for (k, grab) in hold.grabs.iter().enumerate() {
            self.amount(stmt, "hold", &grab.units, Part::Reference(k));
            if let Some(reserve) = &grab.reserve {
                self.amount(stmt, "reserve", reserve, Part::Reference(k));
            }
            self.fits(stmt, grab);
        }
        if let Some(reuse) = &hold.reuse {
            self.amount(stmt, "reuse", reuse, Part::Value);
        }
        self.index_set_inside(stmt, hold);
        if hold.cache.is_none() {
            self.cached_inside(stmt, hold);
        }
        self.holds.push(hold.grabs.iter().map(|g| g.pool.clone()).collect());
        self.block(&hold.body);
        self.holds.pop();
    }

    /// A constant need no member can ever meet.
    fn fits(&mut self, stmt: &ir::Stmt, grab: &ir::Grab) {
        let Some(pool) = self.linker.names.pools.get(grab.pool.pool as usize) else { return };
        let units = fold::value(&grab.units, &self.linker.lists);
        let reserve = grab.reserve.as_ref().and_then(|e| fold::value(e, &self.linker.lists));
        let Some(need) = [units, reserve].into_iter().flatten().reduce(f64::max) else { return };
        let rounded = match pool.block {
            Some(block) => (need / block).ceil() * block,
            None => need,
        };
        if rounded <= pool.cap || rounded.is_nan() {
            return;
        }
        let (name, cap, block, declared) = (pool.name.clone(), pool.cap, pool.block, pool.declared.name.span);
        let what = if reserve.is_some_and(|r| r >= units.unwrap_or(f64::NEG_INFINITY)) { "reserve" } else { "hold" };
        let in_blocks = match block {
            Some(b) if rounded != need => format!(", {rounded} in blocks of {b}", rounded = fold::show(rounded)),
            _ => String::new(),
        };
        let span = self.span(stmt, Part::Reference(0));
        self.linker
            .error(
                "hold-above-cap",
                span,
                format!(
                    "`{what} {name} ({need})` can never be met: {need} units{in_blocks}, and `{name}` has {cap}",
                    need = fold::show(need),
                    cap = fold::show(cap)
                ),
            )
            .note(declared, format!("cap {cap}", cap = fold::show(cap)))
            .help("hold less, or raise the cap")
            .done(self.linker);
    }

    fn index_set_inside(&mut self, stmt: &ir::Stmt, hold: &ir::Hold) {
        for (k, grab) in hold.grabs.iter().enumerate() {
            let Some(member) = &grab.pool.member else { continue };
            let mut read = BTreeSet::new();
            member.each(&mut |e| {
                if let Expr::Attribute(a) = e {
                    read.insert(*a);
                }
            });
            if read.is_empty() {
                continue;
            }
            let mut set: Option<(ir::Place, u32)> = None;
            each_own_stmt(&hold.body, &mut |s| match &s.kind {
                StmtKind::Set { attribute, .. } | StmtKind::Choose { attribute, .. }
                    if set.is_none() && read.contains(attribute) =>
                {
                    set = Some((s.at, *attribute));
                }
                // A turn sets what it brings, a hold inside what its admission found.
                StmtKind::Turn if set.is_none() => {
                    set = self.turn_sets.iter().find(|a| read.contains(a)).map(|a| (s.at, *a));
                }
                StmtKind::Hold(_) if set.is_none() => {
                    let found = [BuiltIn::Cached as u32, BuiltIn::Computed as u32];
                    set = found.iter().find(|a| read.contains(a)).map(|a| (s.at, *a));
                }
                _ => {}
            });
            if let Some((at, attribute)) = set {
                let span = self.span(stmt, Part::Reference(k));
                let note = self.linker.places.span(at, Part::Whole);
                let name = self.linker.attribute_name(attribute);
                let e = self
                    .linker
                    .error(
                        "index-set-inside",
                        span,
                        format!("the body sets `{name}`, which the index of this hold reads"),
                    )
                    .help("keep the index in an attribute of its own while the hold lasts");
                let e = match note {
                    Some(note) => e.note(note, "set here, inside the hold"),
                    None => e,
                };
                e.done(self.linker);
            }
        }
    }

    /// `cached` read in the body of a hold that consumes nothing.
    fn cached_inside(&mut self, stmt: &ir::Stmt, hold: &ir::Hold) {
        fn reads(block: &[ir::Stmt], found: &mut Option<ir::Place>) {
            for s in block {
                let mut here = false;
                s.each_expr(&mut |e| {
                    here |= e.any(&|e| matches!(e, Expr::Attribute(a) if *a == BuiltIn::Cached as u32));
                });
                if here && found.is_none() {
                    *found = Some(s.at);
                }
                match &s.kind {
                    // A hold inside sets `cached` itself, or is refused by itself.
                    StmtKind::Hold(_) => {}
                    StmtKind::Branch { then, otherwise, .. } => {
                        reads(then, found);
                        reads(otherwise, found);
                    }
                    StmtKind::Loop { body } | StmtKind::Shielded { body } | StmtKind::Fork { body } => {
                        reads(body, found);
                    }
                    StmtKind::Run(run) => run.then.iter().for_each(|then| reads(&then.body, found)),
                    _ => {}
                }
            }
        }
        let mut found = None;
        reads(&hold.body, &mut found);
        if let Some(at) = found {
            let span = self.span(stmt, Part::Reference(0));
            let note = self.linker.places.span(at, Part::Whole);
            let e = self
                .linker
                .error("cached-without-cache", span, "`cached` is read in a hold without `cache`")
                .label("such a hold consumes no prefix, so `cached` is 0")
                .help("write `cache (0)` behind the body to consume the prefix and keep nothing");
            let e = match note {
                Some(note) => e.note(note, "read here"),
                None => e,
            };
            e.done(self.linker);
        }
    }

    /// `grow`, `load` and `growing` act on an enclosing hold.
    fn inside(&mut self, stmt: &ir::Stmt, verb: &str, pool: &ir::PoolRef, part: Part) {
        if !self.whole || self.holds.iter().flatten().any(|p| p == pool) {
            return;
        }
        self.outside(stmt, verb, pool, part);
    }

    /// `release` reaches a hold or a lease.
    fn reachable(&mut self, stmt: &ir::Stmt, pool: &ir::PoolRef, later: bool) {
        if later && self.holds.iter().flatten().any(|p| p == pool) {
            let span = self.span(stmt, Part::Reference(0));
            let name = self.linker.pool_name(pool);
            self.linker
                .error("outside-hold", span, format!("`release {name} after` inside a hold of `{name}`"))
                .help("only a lease ends later: release the hold without `after`, or put this behind the hold")
                .done(self.linker);
            return;
        }
        if !self.whole || self.holds.iter().flatten().any(|p| p == pool) || self.leased.contains(pool) {
            return;
        }
        self.outside(stmt, "release", pool, Part::Reference(0));
    }

    fn outside(&mut self, stmt: &ir::Stmt, verb: &str, pool: &ir::PoolRef, part: Part) {
        let span = self.span(stmt, part);
        let name = self.linker.pool_name(pool);
        let holds: Vec<String> =
            self.holds.iter().flatten().map(|p| format!("`{}`", self.linker.pool_name(p))).collect();
        let other_index = self.holds.iter().flatten().chain(&self.leased).any(|p| p.pool == pool.pool);
        let lease = if verb == "release" { ", and nothing leases it" } else { "" };
        let e = self.linker.error("outside-hold", span, format!("`{verb} {name}` outside a hold of `{name}`{lease}"));
        let e = if other_index {
            e.help("write the pool as the hold does, index included")
        } else if holds.is_empty() {
            e.help(format!("no hold encloses it: `hold {name} (n) {{ … }}`"))
        } else {
            e.help(format!("the enclosing holds: {}", holds.join(", ")))
        };
        e.done(self.linker);
    }
}

impl Linker<'_> {
    pub(crate) fn attribute_name(&self, attribute: u32) -> String {
        self.names.attributes.get(attribute as usize).map_or_else(String::new, |a| a.name.clone())
    }

    pub(crate) fn pool_name(&self, pool: &ir::PoolRef) -> String {
        let name = self.names.pools.get(pool.pool as usize).map_or("", |p| p.name.as_str());
        indexed(name, pool.member.as_deref())
    }

    pub(crate) fn stage_name(&self, stage: &ir::StageRef) -> String {
        let name = self.names.stages.get(stage.stage as usize).map_or("", |s| s.name.as_str());
        indexed(name, stage.member.as_deref())
    }
}

fn indexed(name: &str, member: Option<&Expr>) -> String {
    let index = match member {
        None => return name.to_string(),
        Some(Expr::Number(n)) => format!("[{}]", n.0),
        Some(_) => "[…]".to_string(),
    };
    match name.split_once('.') {
        Some((queue, field)) => format!("{queue}{index}.{field}"),
        None => format!("{name}{index}"),
    }
}

/// Visits the statements of a block and of those inside, legs aside: what they set is their own.
fn each_own_stmt<'s>(block: &'s [ir::Stmt], visit: &mut dyn FnMut(&'s ir::Stmt)) {
    for stmt in block {
        match &stmt.kind {
            StmtKind::Fork { .. } => continue,
            _ => visit(stmt),
        }
        match &stmt.kind {
            StmtKind::Hold(hold) => each_own_stmt(&hold.body, visit),
            StmtKind::Branch { then, otherwise, .. } => {
                each_own_stmt(then, visit);
                each_own_stmt(otherwise, visit);
            }
            StmtKind::Loop { body } | StmtKind::Shielded { body } => each_own_stmt(body, visit),
            StmtKind::Run(run) => run.then.iter().for_each(|then| each_own_stmt(&then.body, visit)),
            _ => {}
        }
    }
}

/// Legs nobody waits for, and a wait for none.
fn check_legs(linker: &mut Linker<'_>, session: &ir::Block) {
    let (mut fork, mut join) = (None, None);
    ir::each_stmt(session, &mut |s| match s.kind {
        StmtKind::Fork { .. } => {
            fork.get_or_insert(s.at);
        }
        StmtKind::Join => {
            join.get_or_insert(s.at);
        }
        _ => {}
    });
    let word = |linker: &Linker<'_>, at| linker.places.span(at, Part::Whole).map(|s| Span { end: s.start + 4, ..s });
    match (fork, join) {
        (Some(fork), None) => {
            let span = word(linker, fork);
            linker
                .error("fork-join", span, "a leg that nothing waits for: the session never joins")
                .label("a session may not end while its leg runs")
                .help("write `join;` where the session needs what the leg did, or before its end")
                .done(linker);
        }
        (None, Some(join)) => {
            let span = word(linker, join);
            linker
                .error("fork-join", span, "`join` in a program that forks nothing")
                .label("there is no leg to wait for")
                .help("write `fork { … }` before it, around what runs beside the session")
                .done(linker);
        }
        _ => {}
    }
}

/// How a pass through a block may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pass {
    /// Some path reaches the end of the block without time passing or the session ending.
    timeless: bool,
}

/// A `loop` that could go round in one instant.
fn check_loops(linker: &mut Linker<'_>, session: &ir::Block) {
    let mut bad = Vec::new();
    ir::each_stmt(session, &mut |s| {
        if let StmtKind::Loop { body } = &s.kind
            && pass(body).timeless
        {
            bad.push((s.at, timeless_path(body)));
        }
    });
    for (at, path) in bad {
        let span = linker.places.span(at, Part::Whole);
        let span = span.map(|s| Span { end: (s.start + 4).min(s.end), ..s });
        let mut e = linker
            .error("timeless-loop", span, "this `loop` can go round without time passing")
            .help("every path through the body needs a `run`, a `hold` with one inside, or `end`");
        for place in path {
            if let Some(span) = linker.places.span(place, Part::Whole) {
                let line = Span { end: span.end.min(span.start + 6), ..span };
                e = e.note(line, "past this without time");
            }
        }
        e.done(linker);
    }
}

fn pass(block: &[ir::Stmt]) -> Pass {
    for s in block {
        let timeless = match &s.kind {
            // What reads a pool takes no time where nothing is there.
            StmtKind::Run(run) => run.reads.is_some() || fold::value(&run.work, &[]) == Some(0.0),
            StmtKind::End | StmtKind::Fail => false,
            StmtKind::Hold(hold) => pass(&hold.body).timeless,
            // A constant guard is not looked at: with another setting it is another.
            StmtKind::Branch { then, otherwise, .. } => pass(then).timeless || pass(otherwise).timeless,
            StmtKind::Shielded { body } => pass(body).timeless,
            // Nothing comes behind a loop, and it is judged by itself.
            StmtKind::Loop { .. } => false,
            _ => true,
        };
        if !timeless {
            return Pass { timeless: false };
        }
    }
    Pass { timeless: true }
}

/// The branches on a path without time, for the message.
fn timeless_path(block: &[ir::Stmt]) -> Vec<ir::Place> {
    let mut path = Vec::new();
    for s in block {
        match &s.kind {
            StmtKind::Branch { then, otherwise, .. } => {
                path.push(s.at);
                let way = if pass(then).timeless { then } else { otherwise };
                path.extend(timeless_path(way));
            }
            StmtKind::Hold(hold) => path.extend(timeless_path(&hold.body)),
            _ => {}
        }
        if path.len() > 4 {
            path.truncate(4);
            break;
        }
    }
    path
}
