//! The members of a program's pools and stages by number, as the kernel counts them: families
//! in declaration order, each with its members.

use serq_ir::{Program, StageKind};
use serq_sim::report::member_name;

/// One pool or stage.
pub(crate) struct Member {
    /// `P.nic[0]`.
    pub(crate) name: String,
    /// The instance it is a part of: `P[0]`.
    pub(crate) instance: String,
    /// Its family's number.
    pub(crate) family: u32,
}

/// What a stage is, as far as a timeline cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Engine,
    Delay,
    /// Anything that jobs wait for or share.
    Wire,
}

/// All pools.
pub(crate) fn pools(program: &Program) -> Vec<Member> {
    members(program.pools.iter().map(|pool| (&pool.name[..], pool.size)))
}

/// All stages.
pub(crate) fn stages(program: &Program) -> Vec<(Member, Kind)> {
    let all = members(program.stages.iter().map(|stage| (&stage.name[..], stage.size)));
    let kind = |member: &Member| match program.stages[member.family as usize].kind {
        StageKind::Step(_) => Kind::Engine,
        StageKind::Delay => Kind::Delay,
        StageKind::Fifo { .. } | StageKind::Ps { .. } => Kind::Wire,
    };
    all.into_iter()
        .map(|member| {
            let kind = kind(&member);
            (member, kind)
        })
        .collect()
}

fn members<'a>(families: impl Iterator<Item = (&'a str, Option<u32>)>) -> Vec<Member> {
    let mut all = Vec::new();
    for (family, (name, size)) in families.enumerate() {
        let base = name.split('.').next().unwrap_or(name);
        for member in 0..size.unwrap_or(1) {
            let index = size.map(|_| member);
            all.push(Member {
                name: member_name(name, index),
                instance: member_name(base, index),
                family: family as u32,
            });
        }
    }
    all
}
