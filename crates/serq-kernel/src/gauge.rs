//! Gauges, kept up to date term by term.
//!
//! An aggregate of a gauge (`max k in 1000 (used(D[k].kv))`) is a *fold*: a term a
//! member, and a binary tree over them. What a term reads is found once, so that a
//! change of one pool costs one term and one path of the tree, and a gauge that reads
//! nothing of what changed costs nothing.
//!
//! ```text
//!   pool or stage touched ─▶ its watches ─▶ terms read again ─▶ path to the root ─▶ gauge
//! ```
//!
//! # Invariants
//!
//! - A fold's root depends on the terms' present values alone, never on their history: a sum
//!   is added up along the tree, not kept by adding and subtracting.
//! - `Kernel::gauge` evaluates the whole gauge from nothing and gives the same bits: sums
//!   of expressions are added pairwise too. Debug builds compare.

use serq_ir as ir;
use serq_ir::{Fold, PoolFigure};

use crate::expression::{Bound, Expr, Families, Family, Frame, NO_VARIABLES, Reads, fold};
use crate::index_set::IndexSet;
use crate::kernel::Kernel;
use crate::pool::{HOLDERS, QUEUE, USED};
use crate::world::{Purpose, World};

/// A gauge made ready.
#[derive(Debug)]
pub(crate) struct GaugeCode {
    /// As written.
    whole: Expr,
    /// The same with aggregates taken from folds.
    value: Expr,
    draws: bool,
}

#[derive(Debug)]
pub(crate) struct FoldCode {
    gauge: u32,
    fold: Fold,
    /// Its terms' place among [`BodyCode`], and their number.
    of: u32,
    terms: u32,
}

/// What terms are written in, which one fold or more share.
#[derive(Debug)]
pub(crate) struct BodyCode {
    body: ir::Expr,
    /// Of its terms, which stand side by side.
    first: u32,
    terms: u32,
}

#[derive(Debug)]
pub(crate) struct TermCode {
    value: Expr,
    /// Its place in its folds, and those.
    at: u32,
    folds: Vec<u32>,
}

/// Gauges belong to no session. Their draws are those of the first stage.
const GAUGE_FRAME: Frame<'static> = Frame::machine(Purpose::Stage, 0, NO_VARIABLES);

/// What is to be read again when a member of a pool or stage changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Which changes of a pool ([`USED`] …).
    changes: u8,
    target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Gauge(u32),
    Term(u32),
}

/// All gauges of a program.
#[derive(Debug, Default)]
pub(crate) struct GaugesCode {
    pub(crate) gauges: Vec<GaugeCode>,
    folds: Vec<FoldCode>,
    bodies: Vec<BodyCode>,
    terms: Vec<TermCode>,
    /// By member.
    pool_watches: Vec<Vec<Watch>>,
    stage_watches: Vec<Vec<Watch>>,
}

impl GaugesCode {
    pub(crate) fn new(gauges: &[ir::Gauge], pools: usize, stages: usize, families: &Families) -> Self {
        let mut code =
            Self { pool_watches: vec![Vec::new(); pools], stage_watches: vec![Vec::new(); stages], ..Self::default() };
        for (at, gauge) in gauges.iter().enumerate() {
            let at = at as u32;
            let reads = Reads::of(&gauge.value);
            let whole = Expr::new(&gauge.value, families);
            // With the clock or draws it is another number at every look: it is read whole,
            // whenever anything of it changes.
            let splits = !reads.now && !reads.draws;
            let value = Expr::with(&gauge.value, families, None, &mut |aggregate| {
                splits.then(|| code.add_fold(families, at, aggregate)).flatten()
            });
            code.watch(families, &gauge.value, None, splits, Target::Gauge(at));
            code.gauges.push(GaugeCode { whole, value, draws: reads.draws });
        }
        code
    }

    fn add_fold(&mut self, families: &Families, gauge: u32, aggregate: &ir::Expr) -> Option<u32> {
        let ir::Expr::Aggregate { fold, count, body } = aggregate else { return None };
        if !is_fold(aggregate) {
            return None;
        }
        let known = self.bodies.iter().position(|b| b.body == **body && b.terms == *count);
        let of = known.unwrap_or_else(|| {
            let first = self.terms.len() as u32;
            for at in 0..*count {
                self.watch(families, body, Some(at), false, Target::Term(first + at));
                let value = Expr::with(body, families, Some(Bound::Term(at)), &mut |_| None);
                self.terms.push(TermCode { value, at, folds: Vec::new() });
            }
            self.bodies.push(BodyCode { body: (**body).clone(), first, terms: *count });
            self.bodies.len() - 1
        });
        let (first, of) = (self.bodies[of].first, of as u32);
        let same = |code: &FoldCode| code.gauge == gauge && code.fold == *fold && code.of == of;
        // An expression may be written, and its aggregates asked for, more than once.
        let id = self.folds.iter().position(same).unwrap_or_else(|| {
            let id = self.folds.len();
            self.terms[first as usize..(first + count) as usize].iter_mut().for_each(|term| term.folds.push(id as u32));
            self.folds.push(FoldCode { gauge, fold: *fold, of, terms: *count });
            id
        });
        Some(id as u32)
    }

    /// Notes what `expr` reads, as the term of this number where it is one, and but for its folds
    /// where these watch for themselves.
    fn watch(&mut self, families: &Families, expr: &ir::Expr, term: Option<u32>, folds_watch: bool, target: Target) {
        match expr {
            ir::Expr::Pool(figure, pool) => {
                let changes = match figure {
                    PoolFigure::Used | PoolFigure::Free => USED,
                    PoolFigure::Holders => HOLDERS,
                    PoolFigure::Queued => QUEUE,
                    // Nobody's session: always 0. And what runs will take is no gauge's.
                    PoolFigure::Cachedin | PoolFigure::Outstanding => 0,
                };
                for member in members(families.pools[pool.pool as usize], pool.member.as_deref(), term) {
                    add(&mut self.pool_watches[member as usize], changes, target);
                }
            }
            ir::Expr::Stage(_, stage) | ir::Expr::Price(stage, ..) => {
                for member in members(families.stages[stage.stage as usize], stage.member.as_deref(), term) {
                    add(&mut self.stage_watches[member as usize], u8::MAX, target);
                }
            }
            _ if folds_watch && is_fold(expr) => return,
            _ => {}
        }
        expr.children().for_each(|child| self.watch(families, child, term, folds_watch, target));
    }
}

/// Whether an expression is an aggregate whose terms can be kept one by one.
fn is_fold(expr: &ir::Expr) -> bool {
    let aggregate = |expr: &ir::Expr| matches!(expr, ir::Expr::Aggregate { .. });
    matches!(expr, ir::Expr::Aggregate { body, .. } if !body.any(&aggregate))
}

/// Once for all it reads of one member.
fn add(watches: &mut Vec<Watch>, changes: u8, target: Target) {
    match watches.last_mut() {
        Some(last) if last.target == target => last.changes |= changes,
        _ => watches.push(Watch { changes, target }),
    }
}

/// The members a reference may mean: one, where the index is the term's number or a constant.
fn members(family: Family, index: Option<&ir::Expr>, term: Option<u32>) -> std::ops::Range<u32> {
    let Family { first, size } = family;
    let one = match (index, term) {
        (None, _) => Some(0),
        (Some(ir::Expr::Number(n)), _) => Some(n.0 as u32),
        (Some(ir::Expr::Variable(0)), Some(term)) => Some(term),
        _ => None,
    };
    match one {
        Some(member) if member < size => first + member..first + member + 1,
        _ => first..first + size,
    }
}

/// The present values of all gauges' terms.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    folds: Vec<FoldTree>,
    /// Nothing was read yet.
    unread: bool,
    stale: IndexSet,
}

/// A binary tree over a fold's terms: the root at 1, the terms from `leaves`.
#[derive(Debug)]
struct FoldTree {
    kind: Fold,
    gauge: u32,
    leaves: usize,
    nodes: Box<[f64]>,
}

impl FoldTree {
    fn new(code: &FoldCode) -> Self {
        let leaves = (code.terms as usize).next_power_of_two();
        // A sum is not changed by 0, nor a least or greatest by NaN.
        let padding = if code.fold == Fold::Sum { 0.0 } else { f64::NAN };
        Self { kind: code.fold, gauge: code.gauge, leaves, nodes: vec![padding; 2 * leaves].into() }
    }

    /// Answers whether the root changed.
    #[inline(always)]
    fn set(&mut self, term: u32, value: f64) -> bool {
        let at = self.leaves + term as usize;
        match self.kind {
            Fold::Min => climb(&mut self.nodes, at, value, |a, b| fold(Fold::Min, a, b)),
            Fold::Max => climb(&mut self.nodes, at, value, |a, b| fold(Fold::Max, a, b)),
            Fold::Sum => climb(&mut self.nodes, at, value, |a, b| fold(Fold::Sum, a, b)),
        }
    }
}

/// Sets a node and those above it, as far as they change. Answers whether the root did. The
/// kind of fold is not asked at every level.
#[inline(always)]
fn climb(nodes: &mut [f64], mut at: usize, mut value: f64, fold: impl Fn(f64, f64) -> f64) -> bool {
    loop {
        let node = &mut nodes[at];
        if node.to_bits() == value.to_bits() {
            return false;
        }
        *node = value;
        if at <= 1 {
            return true;
        }
        at /= 2;
        let below = &nodes[2 * at..2 * at + 2];
        value = fold(below[0], below[1]);
    }
}

impl Gauges {
    pub(crate) fn new(code: &GaugesCode) -> Self {
        let gauges = code.gauges.len();
        let mut stale = IndexSet::new(gauges);
        (0..gauges as u32).for_each(|gauge| stale.insert(gauge));
        Self { folds: code.folds.iter().map(FoldTree::new).collect(), unread: true, stale }
    }

    pub(crate) fn root(&self, fold: u32) -> f64 {
        self.folds[fold as usize].nodes[1]
    }
}

impl Kernel<'_> {
    /// Reads again what a pool's changes concern.
    #[inline(always)]
    pub(crate) fn pool_gauges_read<W: World>(&mut self, world: &mut W, pool: u32, changes: u8) {
        let code = self.code;
        for watch in &code.gauges.pool_watches[pool as usize] {
            if watch.changes & changes != 0 {
                self.read_again(world, watch.target);
            }
        }
    }

    #[inline]
    pub(crate) fn stage_gauges_read<W: World>(&mut self, world: &mut W, stage: u32) {
        let watches = &self.code.gauges.stage_watches[stage as usize];
        if !watches.is_empty() {
            self.read_all_again(world, watches);
        }
    }

    #[inline(never)]
    fn read_all_again<W: World>(&mut self, world: &mut W, watches: &[Watch]) {
        for watch in watches {
            self.read_again(world, watch.target);
        }
    }

    #[inline(always)]
    fn read_again<W: World>(&mut self, world: &mut W, target: Target) {
        match target {
            Target::Gauge(gauge) => self.gauges.stale.insert(gauge),
            Target::Term(term) => self.read_term(world, term),
        }
    }

    #[inline(always)]
    fn read_term<W: World>(&mut self, world: &mut W, term: u32) {
        let code = self.code;
        let TermCode { value, at, folds } = &code.gauges.terms[term as usize];
        let value = self.eval(world, value, &GAUGE_FRAME);
        let Gauges { folds: trees, stale, .. } = &mut self.gauges;
        for &id in folds {
            let tree = &mut trees[id as usize];
            if tree.set(*at, value) {
                stale.insert(tree.gauge);
            }
        }
    }

    #[cold]
    fn read_all_terms<W: World>(&mut self, world: &mut W) {
        (0..self.code.gauges.terms.len() as u32).for_each(|term| self.read_term(world, term));
    }

    /// Calls `visit` with the gauges that may have changed since the last call, and their
    /// values now. Pools and stages are to be drained before.
    pub fn drain_gauges<W: World>(&mut self, world: &mut W, mut visit: impl FnMut(&mut W, usize, f64)) {
        if self.gauges.stale.is_empty() {
            return;
        }
        let code = &self.code.gauges;
        if std::mem::take(&mut self.gauges.unread) {
            self.read_all_terms(world);
        }
        for word in 0..self.gauges.stale.words() {
            while let Some(gauge) = self.gauges.stale.take_from_word(word) {
                let GaugeCode { value, draws, .. } = &code.gauges[gauge as usize];
                let value = self.eval(world, value, &GAUGE_FRAME);
                debug_assert!(
                    *draws || value.to_bits() == self.gauge(world, gauge as usize).to_bits(),
                    "a gauge kept up to date is the gauge evaluated from nothing"
                );
                visit(world, gauge as usize, value);
            }
        }
    }

    /// A gauge's value now, evaluated from nothing.
    fn gauge<W: World>(&self, world: &mut W, gauge: usize) -> f64 {
        self.eval(world, &self.code.gauges.gauges[gauge].whole, &GAUGE_FRAME)
    }
}
