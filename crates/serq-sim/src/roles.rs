//! Which engines prefill for others and which decode, read off a linked program.
//!
//! A *prefill engine* is a step stage on which the program runs prefills only, a *decode
//! engine* one on which it runs decodes. A pool belongs to the role of the engines that run
//! inside the holds that queue at it, where all of them have one role.
//!
//! The rule looks at what a program does, not at the words `queue … : prefill`, so that it
//! holds for programs without stations and for IR from elsewhere.

use serq_ir::{Block, Mode, Program, StmtKind, each_stmt};

/// What an engine is for, or whom a pool lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computes prompts, makes no answer.
    Prefill,
    /// Makes answers.
    Decode,
}

/// The roles of a program that has both.
#[derive(Clone, Debug)]
pub struct Roles {
    /// By family.
    stages: Vec<Option<Role>>,
    /// By family.
    pools: Vec<Option<Role>>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    prefill: bool,
    decode: bool,
}

impl Roles {
    /// `None` unless the program has a prefill engine and a decode engine.
    pub fn of(program: &Program) -> Option<Self> {
        let mut modes = vec![Seen::default(); program.stages.len()];
        see_modes(&program.session, &mut modes);
        let stages: Vec<Option<Role>> = modes
            .iter()
            .map(|seen| match (seen.prefill, seen.decode) {
                (_, true) => Some(Role::Decode),
                (true, false) => Some(Role::Prefill),
                (false, false) => None,
            })
            .collect();
        let has = |role: Role| stages.contains(&Some(role));
        if !has(Role::Prefill) || !has(Role::Decode) {
            return None;
        }
        let mut served = vec![Seen::default(); program.pools.len()];
        see_holds(&program.session, &stages, &mut served);
        let pools = served
            .iter()
            .map(|seen| match (seen.prefill, seen.decode) {
                (true, false) => Some(Role::Prefill),
                (false, true) => Some(Role::Decode),
                _ => None,
            })
            .collect();
        Some(Self { stages, pools })
    }

    /// Of a stage family.
    pub fn stage(&self, family: u32) -> Option<Role> {
        self.stages[family as usize]
    }

    /// Of a pool family.
    pub fn pool(&self, family: u32) -> Option<Role> {
        self.pools[family as usize]
    }
}

fn see_modes(block: &Block, modes: &mut [Seen]) {
    each_stmt(block, &mut |stmt| {
        if let StmtKind::Run(run) = &stmt.kind {
            for stage in &run.stages {
                let seen = &mut modes[stage.stage as usize];
                seen.prefill |= run.mode == Some(Mode::Prefill);
                seen.decode |= run.mode == Some(Mode::Decode) || run.then.is_some();
            }
        }
    });
}

fn see_holds(block: &Block, stages: &[Option<Role>], pools: &mut [Seen]) {
    each_stmt(block, &mut |stmt| {
        let StmtKind::Hold(hold) = &stmt.kind else { return };
        let seen = &mut pools[hold.grabs[0].pool.pool as usize];
        each_stmt(&hold.body, &mut |inner| {
            if let StmtKind::Run(run) = &inner.kind {
                for stage in &run.stages {
                    match stages[stage.stage as usize] {
                        Some(Role::Prefill) => seen.prefill = true,
                        Some(Role::Decode) => seen.decode = true,
                        None => {}
                    }
                }
            }
        });
    });
}
