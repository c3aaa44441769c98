//! `choose j in n by (keys)` over many candidates, kept up to date.
//!
//! Most keys read figures of the candidate alone (`queued(D[j].kv)`), so among a thousand
//! candidates few have changed since the last choice. Their keys stand in a winner tree;
//! what changes marks its candidate, and a choice reads the marked ones again. A key
//! that reads `cachedin` of the candidate is the same for all in whose pool the session has
//! nothing; the few others are tried by themselves.
//!
//! # Invariants
//!
//! - The candidate chosen is the one a scan over all of them finds: of equal ones the first.
//!   Debug builds compare. Where a key is NaN, draws, or reads the candidate in another way,
//!   there is no tree and the scan is what runs.
//! - The tree holds the keys with `cachedin` 0, read when last marked.

use serq_ir as ir;
use serq_ir::{Context, PoolFigure, StageFigure};

use crate::expression::{Bound, Expr, Families, Family, NOBODY};
use crate::kernel::Kernel;
use crate::session::precedes;
use crate::world::World;

/// Fewer candidates are looked at one by one.
const CANDIDATES_MIN: u32 = 9;

/// No candidate.
const NONE: u32 = u32::MAX;

/// A `choose` statement made ready.
#[derive(Debug)]
pub(crate) struct ChoiceCode {
    pub(crate) attribute: u32,
    pub(crate) count: Expr,
    pub(crate) keys: Vec<Expr>,
    /// Of few candidates: the keys of each.
    pub(crate) keys_of_each: Vec<Vec<Expr>>,
    /// Its place among those with a tree.
    pub(crate) tracked: Option<u32>,
    /// Families of pools whose members the candidates are.
    pub(crate) indexed: Vec<Family>,
}

/// A choice with a tree.
#[derive(Debug)]
pub(crate) struct TrackedCode {
    count: u32,
    /// Per candidate, the keys that depend on it, with `cachedin` 0.
    keys: Vec<Vec<Expr>>,
    /// Families of pools of which `cachedin` is read.
    cached: Vec<Family>,
    /// Families of step stages of which `work` is read: while one leaps it changes unmarked.
    worked: Vec<Family>,
}

/// A candidate to be read again.
pub(crate) type Mark = (u32, u32);

/// All tracked choices, and by member of pools and stages which candidates they concern.
#[derive(Debug, Default)]
pub(crate) struct ChoicesCode {
    tracked: Vec<TrackedCode>,
    pub(crate) pool_marks: Vec<Vec<Mark>>,
    pub(crate) stage_marks: Vec<Vec<Mark>>,
}

/// How a key depends on the candidate.
#[derive(Debug, Default)]
struct Dependence {
    /// On figures of the candidate.
    candidate: bool,
    /// On what else differs between two choices.
    other: bool,
    /// In a way no tree can follow.
    beyond: bool,
    pools: Vec<u32>,
    stages: Vec<u32>,
    cached: Vec<u32>,
    worked: Vec<u32>,
}

impl Dependence {
    fn read(&mut self, expr: &ir::Expr, attribute: u32, program: &ir::Program) {
        let is_candidate = |index: &Option<Box<ir::Expr>>| match index.as_deref() {
            Some(ir::Expr::Attribute(a)) => *a == attribute,
            _ => false,
        };
        match expr {
            ir::Expr::Pool(figure, pool) if is_candidate(&pool.member) => {
                // It changes with every step.
                self.beyond |= *figure == PoolFigure::Outstanding;
                if *figure == PoolFigure::Cachedin {
                    // There a session finds what others left.
                    self.beyond |= program.pools[pool.pool as usize].share_prefixes;
                    self.cached.push(pool.pool);
                } else {
                    self.candidate = true;
                    self.pools.push(pool.pool);
                }
                return;
            }
            ir::Expr::Stage(figure, stage) if is_candidate(&stage.member) => {
                let step = matches!(program.stages[stage.stage as usize].kind, ir::StageKind::Step(_));
                self.candidate = true;
                if *figure == StageFigure::Work {
                    self.worked.push(stage.stage);
                }
                // What a served job has left shrinks all the time; what is left of a budget may
                // depend on anything.
                self.beyond |= *figure == StageFigure::BudgetLeft || (*figure == StageFigure::Work && !step);
                self.stages.push(stage.stage);
                return;
            }
            ir::Expr::Attribute(a) => {
                self.candidate |= *a == attribute;
                self.other |= *a != attribute;
            }
            ir::Expr::Context(Context::Now) | ir::Expr::Pool(..) | ir::Expr::Stage(..) => {
                self.other = true;
                self.beyond |= expr.any(&|index| matches!(index, ir::Expr::Attribute(a) if *a == attribute));
            }
            ir::Expr::Price(..) | ir::Expr::Draw(..) | ir::Expr::Aggregate { .. } => self.beyond = true,
            _ => {}
        }
        expr.children().for_each(|child| self.read(child, attribute, program));
    }
}

impl ChoicesCode {
    pub(crate) fn new(pools: usize, stages: usize) -> Self {
        Self { pool_marks: vec![Vec::new(); pools], stage_marks: vec![Vec::new(); stages], ..Self::default() }
    }

    /// Makes a tree for a choice whose keys allow it. Answers its place.
    pub(crate) fn track(
        &mut self,
        program: &ir::Program,
        families: &Families,
        attribute: u32,
        count: &ir::Expr,
        keys: &[ir::Expr],
    ) -> Option<u32> {
        let ir::Expr::Number(n) = count else { return None };
        let count = n.0 as u32;
        if f64::from(count) != n.0 || !(CANDIDATES_MIN..=1 << 20).contains(&count) {
            return None;
        }
        let mut all = Dependence::default();
        let mut ranked = Vec::new();
        for key in keys {
            let mut key_alone = Dependence::default();
            key_alone.read(key, attribute, program);
            if key_alone.beyond || (key_alone.candidate && key_alone.other) {
                return None;
            }
            if key_alone.candidate {
                ranked.push(key);
            }
            all.read(key, attribute, program);
        }
        let pool = |family: &u32| families.pools[*family as usize];
        let stage = |family: &u32| families.stages[*family as usize];
        let (pools, stages): (Vec<Family>, Vec<Family>) =
            (all.pools.iter().map(pool).collect(), all.stages.iter().map(stage).collect());
        let cached: Vec<Family> = all.cached.iter().map(pool).collect();
        let worked: Vec<Family> = all.worked.iter().map(stage).collect();
        // An index beyond a family's members stops the run; the scan says where.
        if pools.iter().chain(&stages).chain(&cached).any(|family| family.size < count) {
            return None;
        }
        let id = self.tracked.len() as u32;
        for candidate in 0..count {
            for family in &pools {
                self.pool_marks[(family.first + candidate) as usize].push((id, candidate));
            }
            for family in &stages {
                self.stage_marks[(family.first + candidate) as usize].push((id, candidate));
            }
        }
        let keys = (0..count)
            .map(|candidate| {
                let bound = Bound::Candidate { attribute, candidate, absent: true };
                ranked.iter().map(|key| Expr::with(key, families, Some(bound), &mut |_| None)).collect()
            })
            .collect();
        self.tracked.push(TrackedCode { count, keys, cached, worked });
        Some(id)
    }
}

/// The keys of each candidate, where they are few and known.
pub(crate) fn keys_of_each(families: &Families, attribute: u32, count: &ir::Expr, keys: &[ir::Expr]) -> Vec<Vec<Expr>> {
    let ir::Expr::Number(count) = count else { return Vec::new() };
    if !(1.0..f64::from(CANDIDATES_MIN)).contains(&count.0) {
        return Vec::new();
    }
    let keys_of = |candidate| {
        let bound = Bound::Candidate { attribute, candidate, absent: false };
        keys.iter().map(|key| Expr::with(key, families, Some(bound), &mut |_| None)).collect()
    };
    (0..count.0 as u32).map(keys_of).collect()
}

/// A winner tree: of any two candidates the one whose keys stand first, of equal ones the lower.
#[derive(Debug)]
pub(crate) struct Choice {
    width: usize,
    keys: Vec<f64>,
    /// The root at 1, the candidates from `leaves`.
    winners: Vec<u32>,
    leaves: usize,
    marked: Vec<u32>,
    is_marked: Vec<bool>,
    /// Candidates with a NaN among their keys.
    nans: u32,
}

impl Choice {
    fn new(code: &TrackedCode) -> Self {
        let count = code.count as usize;
        let leaves = count.next_power_of_two();
        let width = code.keys[0].len();
        Self {
            width,
            keys: vec![0.0; count * width],
            winners: vec![NONE; 2 * leaves],
            leaves,
            marked: (0..code.count).collect(),
            is_marked: vec![true; count],
            nans: 0,
        }
    }

    pub(crate) fn mark(&mut self, candidate: u32) {
        if !self.is_marked[candidate as usize] {
            self.is_marked[candidate as usize] = true;
            self.marked.push(candidate);
        }
    }

    fn keys_of(&self, candidate: u32) -> &[f64] {
        &self.keys[candidate as usize * self.width..][..self.width]
    }

    fn has_nan(&self, candidate: u32) -> bool {
        self.keys_of(candidate).iter().any(|key| key.is_nan())
    }

    /// Puts a candidate, or nobody, at its leaf, and finds the winners above.
    fn place(&mut self, candidate: u32, there: bool) {
        let mut at = self.leaves + candidate as usize;
        self.winners[at] = if there { candidate } else { NONE };
        while at > 1 {
            at /= 2;
            let (left, right) = (self.winners[2 * at], self.winners[2 * at + 1]);
            let winner = match (left, right) {
                (NONE, winner) | (winner, NONE) => winner,
                _ if precedes(self.keys_of(right), self.keys_of(left)) => right,
                _ => left,
            };
            if winner == self.winners[at] && winner != candidate {
                // Who won here before wins above as before.
                return;
            }
            self.winners[at] = winner;
        }
    }
}

pub(crate) fn trees(code: &ChoicesCode) -> Vec<Choice> {
    code.tracked.iter().map(Choice::new).collect()
}

#[inline(never)]
pub(crate) fn mark(choices: &mut [Choice], marks: &[Mark]) {
    for &(choice, candidate) in marks {
        choices[choice as usize].mark(candidate);
    }
}

impl Kernel<'_> {
    /// Something of a stage changed that a choice may read.
    #[inline(always)]
    pub(crate) fn mark_stage(&mut self, stage: u32) {
        if !self.choices.is_empty() {
            mark(&mut self.choices, &self.code.choices.stage_marks[stage as usize]);
        }
    }

    /// The candidate a scan would choose, or `None` where only the scan can tell.
    pub(crate) fn choose_tracked<W: World>(&mut self, world: &mut W, slot: u32, code: &ChoiceCode) -> Option<u32> {
        let id = code.tracked.filter(|_| self.absent.is_empty())?;
        let tracked = &self.code.choices.tracked[id as usize];
        for family in &tracked.worked {
            let mut from = family.first;
            while let Some(stage) = self.leaping.next_from(from).filter(|stage| stage - family.first < family.size) {
                from = stage + 1;
                self.mark_stage(stage);
            }
        }
        self.read_marked(world, id, tracked);
        if self.choices[id as usize].nans > 0 {
            return None;
        }
        // Those in whose pools the session has something are tried by themselves.
        let mut own: Vec<u32> = Vec::new();
        for (pool, _) in &self.sessions[slot as usize].entries {
            for family in &tracked.cached {
                let candidate = pool.wrapping_sub(family.first);
                if candidate < tracked.count && !own.contains(&candidate) {
                    own.push(candidate);
                }
            }
        }
        own.iter().for_each(|&candidate| self.choices[id as usize].place(candidate, false));
        let mut chosen = self.choices[id as usize].winners[1];
        own.iter().for_each(|&candidate| self.choices[id as usize].place(candidate, true));
        if !own.is_empty() {
            if chosen != NONE {
                own.push(chosen);
            }
            own.sort_unstable();
            let (best, comparable) = self.best_of(world, slot, code, own);
            if !comparable {
                return None;
            }
            chosen = best;
        }
        debug_assert_eq!(chosen, self.scan(world, slot, code, tracked.count), "the scan chooses the same");
        Some(chosen)
    }

    fn read_marked<W: World>(&mut self, world: &mut W, id: u32, tracked: &TrackedCode) {
        let mut marked = std::mem::take(&mut self.choices[id as usize].marked);
        for candidate in marked.drain(..) {
            let nan = self.choices[id as usize].has_nan(candidate);
            for (at, key) in tracked.keys[candidate as usize].iter().enumerate() {
                // They read no session.
                let value = self.eval(world, key, &self.frame(NOBODY));
                let choice = &mut self.choices[id as usize];
                choice.keys[candidate as usize * choice.width + at] = value;
            }
            let choice = &mut self.choices[id as usize];
            choice.is_marked[candidate as usize] = false;
            choice.nans = choice.nans - u32::from(nan) + u32::from(choice.has_nan(candidate));
            choice.place(candidate, true);
        }
        self.choices[id as usize].marked = marked;
    }

    /// Looks at every candidate: of those that are there, else of those that take no new work, else of all.
    pub(crate) fn scan<W: World>(&mut self, world: &mut W, slot: u32, code: &ChoiceCode, count: u32) -> u32 {
        if self.absent.is_empty() {
            return self.best_of(world, slot, code, 0..count).0;
        }
        let absence = |candidate: &u32| self.absence(&code.indexed, *candidate);
        let least = (0..count).map(|candidate| absence(&candidate)).min().unwrap_or(0);
        let candidates: Vec<u32> = (0..count).filter(|candidate| absence(candidate) == least).collect();
        self.best_of(world, slot, code, candidates).0
    }

    /// Of these candidates, in order, the first of the best by all keys; 0 where there are none.
    /// And whether no key was NaN: with one, who is best depends on who else is looked at.
    fn best_of<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        code: &ChoiceCode,
        candidates: impl IntoIterator<Item = u32>,
    ) -> (u32, bool) {
        let mut best = std::mem::take(&mut self.keys_best);
        let mut tried = std::mem::take(&mut self.keys_tried);
        let mut chosen = None;
        let mut comparable = true;
        let frame = self.frame(slot);
        for candidate in candidates {
            tried.clear();
            self.set_attribute(slot, code.attribute, f64::from(candidate));
            let keys = code.keys_of_each.get(candidate as usize).unwrap_or(&code.keys);
            self.eval_keys(world, keys, &frame, &mut tried);
            comparable &= !tried.iter().any(|key| key.is_nan());
            if chosen.is_none() || precedes(&tried, &best) {
                chosen = Some(candidate);
                std::mem::swap(&mut best, &mut tried);
            }
        }
        self.keys_best = best;
        self.keys_tried = tried;
        (chosen.unwrap_or(0), comparable)
    }
}
