//! What is looked at together on a page: an engine with its pools and wires, a group of many
//! alike, or what belongs to no engine.

use std::collections::BTreeMap;

use serq_ir::{Program, StageKind};

use crate::timeline::members::{self, Kind, Member};

/// Families longer than this are one group, and its curves the mean over the members.
const APART: usize = 8;

/// A group.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) title: String,
    pub(super) engines: Vec<u32>,
    /// Pools that the engines count as their memory.
    pub(super) memory: Vec<u32>,
    /// All pools.
    pub(super) pools: Vec<u32>,
    pub(super) wires: Vec<u32>,
}

impl Group {
    /// Instances in it.
    pub(super) fn size(&self) -> usize {
        self.engines.len().max(1)
    }
}

/// Engines in declaration order, then what is left.
pub(super) fn of(program: &Program) -> Vec<Group> {
    let (pools, stages) = (members::pools(program), members::stages(program));
    // Every instance has the number of the group it is in.
    let mut groups: Vec<Group> = Vec::new();
    let mut group_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut of_family: BTreeMap<u32, usize> = BTreeMap::new();
    for (id, (stage, kind)) in stages.iter().enumerate() {
        if *kind != Kind::Engine {
            continue;
        }
        let size = program.stages[stage.family as usize].size.unwrap_or(1) as usize;
        let at = if size > APART {
            *of_family.entry(stage.family).or_insert_with(|| {
                let name = &program.stages[stage.family as usize].name;
                groups.push(Group { title: format!("{name}, mean of {size}"), ..Group::default() });
                groups.len() - 1
            })
        } else {
            groups.push(Group { title: stage.name.clone(), ..Group::default() });
            groups.len() - 1
        };
        groups[at].engines.push(id as u32);
        group_of.insert(&stage.instance, at);
    }
    let mut rest = Group { title: "elsewhere".into(), ..Group::default() };
    for (id, pool) in pools.iter().enumerate() {
        let (engine, is_memory) = engine_of(program, &pools, &stages, id);
        let at = engine.map(|engine| stages[engine].0.instance.as_str()).or(Some(&pool.instance));
        let group = match at.and_then(|instance| group_of.get(instance)) {
            Some(&at) => &mut groups[at],
            None => &mut rest,
        };
        group.pools.push(id as u32);
        if is_memory {
            group.memory.push(id as u32);
        }
    }
    for (id, (stage, kind)) in stages.iter().enumerate() {
        if *kind == Kind::Wire {
            match group_of.get(&stage.instance[..]) {
                Some(&at) => groups[at].wires.push(id as u32),
                None => rest.wires.push(id as u32),
            }
        }
    }
    if groups.is_empty() {
        rest.title = "stages and pools".into();
    }
    if !rest.pools.is_empty() || !rest.wires.is_empty() {
        groups.push(rest);
    }
    groups
}

/// The engine a pool serves: as its memory, or that which admits from its queue.
fn engine_of(program: &Program, pools: &[Member], stages: &[(Member, Kind)], pool: usize) -> (Option<usize>, bool) {
    let family = pools[pool].family;
    // A member goes with the one of its own number, or with the only one.
    let within = |all: &mut dyn Iterator<Item = u32>, at: usize| all.take(at).filter(|&f| f == family).count();
    let number = within(&mut pools.iter().map(|p| p.family), pool);
    let member_of = |engine_family: u32| {
        let mut engines = (0..stages.len()).filter(move |&at| stages[at].0.family == engine_family);
        let first = engines.next()?;
        Some(engines.nth(number.wrapping_sub(1)).filter(|_| number > 0).unwrap_or(first))
    };
    let as_memory = program.stages.iter().position(|stage| match &stage.kind {
        StageKind::Step(step) => step.memory == Some(family),
        _ => false,
    });
    let engine = as_memory.map(|at| at as u32).or(program.pools[family as usize].via);
    (engine.and_then(member_of), as_memory.is_some())
}
