//! A run that is too short: which of its figures mean little.
//!
//! A note is due for an observation whose samples after warm-up differ, where
//!
//! - they are fewer than [`SAMPLES_LEAST`]: the p99 is then the greatest of them, and the
//!   interval of the mean is missing or a guess; or
//! - the 95 % half-width of the mean is above [`SHARE_MOST`] of the mean.
//!
//! Nothing is said where sessions come as a batch or from a trace, and where neither their coming
//! nor what they do is drawn: such a run is a scene, and as long as it is meant to be. Of many
//! seeds their own interval tells.

use serq_ir::{Arrive, Block, Expr, Program, StmtKind, each_stmt};
use serq_sim::report::{Note, NoteKind, Observe, Report};

use crate::number::{exact, significant};
use crate::precision::rounded;

/// Fewer samples have no p99 of their own.
const SAMPLES_LEAST: u64 = 100;
/// Half-width over mean. By judgement: above it the first digit of the mean is in doubt.
const SHARE_MOST: f64 = 0.25;
/// Variance over squared mean: what rounding leaves of equal samples.
const EQUAL: f64 = 1e-18;

/// The note, if the run is too short.
pub(crate) fn note(program: &Program, report: &Report) -> Option<Note> {
    if !is_left_to_chance(program) {
        return None;
    }
    let (mut few, mut wide) = (Vec::new(), Vec::new());
    // How many times as long the run should be.
    let mut times: f64 = 1.0;
    for Observe { name, count, mean, ci, cv2, .. } in &report.observes {
        let differ = *count == 1 || *cv2 > EQUAL;
        let share = ci / mean.abs();
        if differ && *count < SAMPLES_LEAST {
            few.push(format!("{name} ({count})"));
            times = times.max(SAMPLES_LEAST as f64 / *count as f64);
        } else if differ && share > SHARE_MOST {
            wide.push(format!("{name} (±{} %)", significant(100.0 * share, 2)));
            times = times.max((share / SHARE_MOST).powi(2));
        }
    }
    let mut text = String::from("too short a run: ");
    if !few.is_empty() {
        text += &format!("fewer than {SAMPLES_LEAST} samples of {}; ", few.join(", "));
    }
    if !wide.is_empty() {
        text += &format!("an interval above {} % of the mean: {}; ", 100.0 * SHARE_MOST, wide.join(", "));
    }
    text += &longer(program, times).map_or_else(|| "try ".into(), |flag| format!("try {flag}, or "));
    text += "--seeds 1..20";
    (times > 1.0).then_some(Note { kind: NoteKind::Short, text })
}

/// Whether another seed is another run, and more of it more to learn from.
fn is_left_to_chance(program: &Program) -> bool {
    let workload = &program.workload;
    match &workload.arrive {
        Arrive::Poisson(_) | Arrive::Steps { .. } | Arrive::Bursts { .. } => true,
        Arrive::None | Arrive::Batch(_) | Arrive::Trace(_) => false,
        Arrive::Renewal(gap) if draws(gap) => true,
        Arrive::Renewal(_) | Arrive::Closed(_) => {
            workload.trace.as_ref().is_some_and(|trace| !trace.ordered)
                || [&workload.init, &workload.turn, &program.session].into_iter().any(block_draws)
        }
    }
}

fn draws(expr: &Expr) -> bool {
    expr.any(&|inner| matches!(inner, Expr::Draw(..)))
}

fn block_draws(block: &Block) -> bool {
    let mut drawn = false;
    each_stmt(block, &mut |stmt| {
        drawn |= matches!(stmt.kind, StmtKind::Branch { chance: true, .. });
        stmt.each_expr(&mut |expr| drawn |= draws(expr));
    });
    drawn
}

/// The flag of a run so many times as long, and a tenth more; `None` where that brings nothing.
fn longer(program: &Program, times: f64) -> Option<String> {
    if let Arrive::Steps { pieces, repeat: false } = &program.workload.arrive
        && pieces.last().is_some_and(|last| last.time.0.is_finite())
    {
        // Nobody comes after the last piece.
        return None;
    }
    let run = &program.run;
    let (flag, end) = match run.arrivals {
        Some(arrivals) => ("--arrivals", arrivals as f64 * times),
        None => ("--horizon", run.warmup.0 + (run.horizon.0 - run.warmup.0) * times),
    };
    let end = rounded(1.1 * end);
    end.is_finite().then(|| format!("{flag} {}", exact(end)))
}
