//! Boxes in boxes: pools around what is held in them, as words and counts, with no places yet.

use serq_ir::json::Number;
use serq_ir::{Expr, Pool, Preempt, Program, Stage, StageKind};

use super::holding::Holding;
use crate::number::{exact, significant};

/// A box of the picture.
pub(super) struct Part {
    pub(super) what: What,
    /// How many of it there are: a stack, if more than one.
    pub(super) count: u32,
    /// What stands on it: the first is its name.
    pub(super) lines: Vec<String>,
    /// A pool's: what is inside, from above.
    pub(super) parts: Vec<Part>,
}

/// What a box stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Sessions come from here.
    Arrival,
    /// A member is chosen.
    Router,
    /// An index of the program's pools, and whether somebody waits for it.
    Pool { pool: usize, queue: bool },
    /// An index of the program's stages.
    Stage { stage: usize, glyph: Glyph },
    /// Stages that one flow uses at once.
    Link,
    /// Sessions end here.
    Done,
}

/// How a stage serves, as a sign.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Glyph {
    Fifo,
    Ps,
    Delay,
    Step,
}

/// A stage's box.
pub(super) fn stage(program: &Program, index: usize) -> Part {
    let stage = &program.stages[index];
    let glyph = match stage.kind {
        StageKind::Fifo { .. } => Glyph::Fifo,
        StageKind::Ps { .. } => Glyph::Ps,
        StageKind::Delay => Glyph::Delay,
        StageKind::Step(_) => Glyph::Step,
    };
    Part {
        what: What::Stage { stage: index, glyph },
        count: stage.size.unwrap_or(1),
        lines: std::iter::once(stage.name.clone()).chain(how_it_serves(stage)).collect(),
        parts: Vec::new(),
    }
}

fn how_it_serves(stage: &Stage) -> Vec<String> {
    match &stage.kind {
        StageKind::Fifo { servers: 1 } => vec!["in order of arrival".into()],
        StageKind::Fifo { servers } => vec![format!("in order, {servers} servers")],
        StageKind::Ps { rate } => vec![match constant(rate) {
            Some(rate) => format!("shared, rate {}", quantity(rate)),
            None => "shared, rate varies".into(),
        }],
        StageKind::Delay => vec!["nobody waits".into()],
        StageKind::Step(step) => {
            let budget = match constant(&step.budget) {
                Some(budget) if budget.is_finite() => format!("{} tokens a step", quantity(budget)),
                Some(_) => "step by step".into(),
                None => "steps, budget varies".into(),
            };
            let mut lines = vec![budget];
            if let Some(chunk) = constant(&step.chunk).filter(|&chunk| chunk > 0.0) {
                lines.push(format!("chunks of {}", quantity(chunk)));
            }
            if step.serve.exclusive_prefill {
                lines.push("prefill alone".into());
            }
            if step.asynchronous.is_some() {
                lines.push("planned a step ahead".into());
            }
            lines
        }
    }
}

/// The boxes of a group of pools: each pool around the next, the widest-reaching outermost, and
/// every stage as deep as the pools that are held around all its runs.
pub(super) fn group(program: &Program, holding: &Holding, group: usize) -> Part {
    let inside = |stage: &usize| holding.inside.get(stage).map(|pools| (*stage, pools));
    let mut stages: Vec<(usize, &Vec<usize>)> = holding
        .stages
        .iter()
        .filter_map(inside)
        .filter(|(_, pools)| pools.iter().any(|&pool| holding.group[pool] == group))
        .collect();
    let reach = |pool: usize| stages.iter().filter(|(_, pools)| pools.contains(&pool)).count();
    let mut pools: Vec<usize> = holding.pools.iter().copied().filter(|&pool| holding.group[pool] == group).collect();
    // One for all members stands around the stack of them. Then who reaches furthest; then who is held first.
    pools.sort_by_key(|&pool| (program.pools[pool].size.is_some(), std::cmp::Reverse(reach(pool))));
    let mut inner: Option<Part> = None;
    for depth in (0..pools.len()).rev() {
        let around = &pools[..=depth];
        let mut parts: Vec<Part> = Vec::new();
        stages.retain(|(index, held)| {
            let here = around.iter().all(|pool| held.contains(pool)) || depth == 0;
            if here {
                parts.push(stage(program, *index));
            }
            !here
        });
        parts.extend(inner.take());
        inner = Some(pool(program, holding, pools[depth], parts));
    }
    inner.expect("a group has a pool")
}

fn pool(program: &Program, holding: &Holding, index: usize, parts: Vec<Part>) -> Part {
    let pool = &program.pools[index];
    let mut lines = vec![pool.name.clone(), capacity(pool)];
    let mut more: Vec<&str> = Vec::new();
    if holding.leased.contains(&index) {
        more.push("leased");
    }
    if !matches!(pool.preempt, Preempt::None) {
        more.push("preempts");
    }
    if pool.share_prefixes {
        more.push("prefixes shared");
    }
    if !more.is_empty() {
        lines.push(more.join(", "));
    }
    let queue = holding.joined.contains(&index);
    Part { what: What::Pool { pool: index, queue }, count: pool.size.unwrap_or(1), lines, parts }
}

fn capacity(pool: &Pool) -> String {
    let units = match pool.cap.0 {
        cap if cap.is_finite() => format!("{} units", quantity(cap)),
        _ => "without end".into(),
    };
    match pool.block {
        Some(Number(block)) if block != 1.0 => format!("{units}, blocks of {}", quantity(block)),
        _ => units,
    }
}

fn constant(expression: &Expr) -> Option<f64> {
    if let Expr::Number(number) = expression { Some(number.0) } else { None }
}

/// A number as the picture has it.
pub(super) fn quantity(value: f64) -> String {
    let exact = exact(value);
    // Thousands apart, short decimals as they are, four digits of the others.
    match value.fract() == 0.0 {
        true => significant(value, 15),
        false if exact.len() <= 7 => exact,
        false => significant(value, 4),
    }
}
