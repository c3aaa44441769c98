//! What a session holds while it runs where: the facts of which enclosures are made.
//!
//! Pools that stand together make a group, one engine's memory and seats for example: pools
//! of one queue (`P.kv`, `P.reqs`), pools in one hold's header, a pool that is only ever held
//! inside another, and the pools a step stage counts or serves. Pools of two queues (`P.kv`,
//! `D.kv`) never make one group, however they are held.
//!
//! # Invariants
//!
//! - Every pool is in one group, every shared stage in one link.
//! - A stage is inside pools of its own group only, and those are held at each of its runs.

use std::collections::{BTreeMap, BTreeSet};

use serq_ir::{Block, Program, StmtKind};

/// What a walk over the session found.
pub(super) struct Holding {
    /// The group of every pool: the least of its pools.
    pub(super) group: Vec<usize>,
    /// The link of every shared stage, and of its latency: the least of its stages.
    pub(super) link: BTreeMap<usize, usize>,
    /// Pools around every run of a stage that is in a group; outermost first.
    pub(super) inside: BTreeMap<usize, Vec<usize>>,
    /// Pools and stages in the order in which the session first names them; the others follow.
    pub(super) pools: Vec<usize>,
    pub(super) stages: Vec<usize>,
    /// Pools whose queue somebody joins.
    pub(super) joined: BTreeSet<usize>,
    /// Pools of which some hold leaves a lease.
    pub(super) leased: BTreeSet<usize>,
}

/// Looks.
pub(super) fn of(program: &Program) -> Holding {
    let mut walk = Walk::default();
    walk.block(&program.session);
    let groups = groups(program, &walk);
    let link = links(program, &walk.found.flows);
    let inside = inside(program, &walk.runs, &groups, &link);
    let first = |mut named: Vec<usize>, all: usize| {
        named.extend(0..all);
        common(&[named])
    };
    let stages = first(walk.found.stages, program.stages.len());
    let pools = first(walk.found.headers.concat(), program.pools.len());
    Holding { group: groups, link, inside, pools, stages, joined: walk.found.joined, leased: walk.found.leased }
}

/// `P` of `P.kv`; nothing for a name without a dot.
fn queue_of(name: &str) -> Option<&str> {
    name.split_once('.').map(|(queue, _)| queue)
}

#[derive(Default)]
struct Found {
    joined: BTreeSet<usize>,
    leased: BTreeSet<usize>,
    /// Pools of one header.
    headers: Vec<Vec<usize>>,
    /// Stages as they are run.
    stages: Vec<usize>,
    /// Stages of one flow.
    flows: Vec<Vec<usize>>,
}

#[derive(Default)]
struct Walk {
    /// Outermost first.
    held: Vec<usize>,
    /// Pools around every run of a stage.
    runs: BTreeMap<usize, Vec<Vec<usize>>>,
    /// Pools around every hold of a pool.
    holds: BTreeMap<usize, Vec<Vec<usize>>>,
    found: Found,
}

impl Walk {
    fn block(&mut self, block: &Block) {
        for statement in block {
            match &statement.kind {
                StmtKind::Hold(hold) => {
                    let pools: Vec<usize> = hold.grabs.iter().map(|grab| grab.pool.pool as usize).collect();
                    self.found.joined.extend(pools.first());
                    self.found.leased.extend(hold.lease.as_ref().and_then(|lease| pools.get(lease.grab as usize)));
                    for &pool in &pools {
                        self.holds.entry(pool).or_default().push(self.held.clone());
                    }
                    let before = self.held.len();
                    self.held.extend(&pools);
                    self.found.headers.push(pools);
                    self.block(&hold.body);
                    self.held.truncate(before);
                }
                StmtKind::Run(run) => {
                    let stages: Vec<usize> = run.stages.iter().map(|stage| stage.stage as usize).collect();
                    for &stage in &stages {
                        self.runs.entry(stage).or_default().push(self.held.clone());
                    }
                    self.found.stages.extend(&stages);
                    if stages.len() > 1 {
                        self.found.flows.push(stages);
                    }
                }
                StmtKind::Branch { then, otherwise, .. } => {
                    self.block(then);
                    self.block(otherwise);
                }
                StmtKind::Loop { body } | StmtKind::Shielded { body } => self.block(body),
                StmtKind::Fork { body } => {
                    let around = std::mem::take(&mut self.held);
                    self.block(body);
                    self.held = around;
                }
                _ => {}
            }
        }
    }
}

/// Sets that are joined until nothing more is to join; a set is named by its least member.
struct Sets(Vec<usize>);

impl Sets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn find(&self, mut member: usize) -> usize {
        while self.0[member] != member {
            member = self.0[member];
        }
        member
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}

fn groups(program: &Program, walk: &Walk) -> Vec<usize> {
    let pools = &program.pools;
    let apart = |a: usize, b: usize| match (queue_of(&pools[a].name), queue_of(&pools[b].name)) {
        (Some(a), Some(b)) => a != b,
        _ => false,
    };
    let mut sets = Sets::new(pools.len());
    let mut join = |a: usize, b: usize| {
        if !apart(a, b) {
            sets.join(a, b);
        }
    };
    for a in 0..pools.len() {
        for b in 0..a {
            let queues = (queue_of(&pools[a].name), queue_of(&pools[b].name));
            if queues.0.is_some() && queues.0 == queues.1 {
                join(a, b);
            }
        }
    }
    for header in &walk.found.headers {
        header.windows(2).for_each(|pair| join(pair[0], pair[1]));
    }
    for (&pool, around) in &walk.holds {
        for outer in common(around) {
            join(pool, outer);
        }
    }
    for (stage, of_stage) in program.stages.iter().enumerate() {
        let serq_ir::StageKind::Step(step) = &of_stage.kind else { continue };
        let served = (0..pools.len()).filter(|&pool| pools[pool].via == Some(stage as u32));
        let mine: Vec<usize> = step.memory.map(|pool| pool as usize).into_iter().chain(served).collect();
        mine.windows(2).for_each(|pair| join(pair[0], pair[1]));
    }
    (0..pools.len()).map(|pool| sets.find(pool)).collect()
}

/// Stages of one flow belong together, and so does the latency before it.
fn links(program: &Program, flows: &[Vec<usize>]) -> BTreeMap<usize, usize> {
    let mut sets = Sets::new(program.stages.len());
    let mut linked: BTreeSet<usize> = BTreeSet::new();
    for flow in flows {
        linked.extend(flow);
        flow.windows(2).for_each(|pair| sets.join(pair[0], pair[1]));
    }
    for (stage, of_stage) in program.stages.iter().enumerate() {
        let of = of_stage.name.strip_suffix(".latency");
        let of = linked.iter().copied().find(|&shared| Some(&program.stages[shared].name[..]) == of);
        if let Some(shared) = of {
            sets.join(stage, shared);
            linked.insert(stage);
        }
    }
    linked.into_iter().map(|stage| (stage, sets.find(stage))).collect()
}

fn inside(
    program: &Program,
    runs: &BTreeMap<usize, Vec<Vec<usize>>>,
    groups: &[usize],
    link: &BTreeMap<usize, usize>,
) -> BTreeMap<usize, Vec<usize>> {
    let mut inside = BTreeMap::new();
    for (&stage, around) in runs {
        if link.contains_key(&stage) {
            continue;
        }
        let pools = common(around);
        // The queue's own pools if it is a queue's engine, else the innermost held.
        let name = &program.stages[stage].name;
        let own = |pool: &&usize| queue_of(&program.pools[**pool].name) == Some(queue_of(name).unwrap_or(name));
        let Some(&home) = pools.iter().rev().find(own).or(pools.last()) else { continue };
        let of_home: Vec<usize> = pools.into_iter().filter(|&pool| groups[pool] == groups[home]).collect();
        inside.insert(stage, of_home);
    }
    inside
}

/// What is in every one of these lists, in the order of the first; each once.
fn common(lists: &[Vec<usize>]) -> Vec<usize> {
    let Some((first, rest)) = lists.split_first() else { return Vec::new() };
    let mut seen = BTreeSet::new();
    let everywhere = |member: &usize| rest.iter().all(|list| list.contains(member));
    first.iter().copied().filter(|member| seen.insert(*member) && everywhere(member)).collect()
}
