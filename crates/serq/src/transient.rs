//! A warm-up that is too short: what it does to a mean, seen over seeds.
//!
//! A run begins empty. What it observes on its way to what it settles at is in every
//! seed's mean, and more seeds narrow the interval around the wrong number. Each run
//! is cut in two where half of its counted time is over:
//!
//! ```text
//!   0      warm-up             middle              horizon
//!   ├─ ─ ─ ─┼─────────────────────┼─────────────────────┤
//!                    mean of all − mean of the second half  =  shift, one a seed
//! ```
//!
//! Seeds are independent, so the shifts have a Student interval, as samples within one run
//! would not. A note is due when over [`SEEDS_LEAST`] seeds or more the mean shift is
//! above twice its 95 % half-width, above the half-width of the mean itself, and above a
//! thousandth of it: it is there, and it is larger than what the report calls certain.
//! Twice, because a run has many observations and each is a chance for a false alarm.
//! Nothing is said of traces, and of programs in which every seed is the same run.

use serq_ir::{Arrive, Program};
use serq_sim::record::Recorder;
use serq_sim::replicate::Summary;

use crate::number::{exact, pair};

/// Fewer seeds have an interval too uncertain to accuse with.
const SEEDS_LEAST: usize = 5;
/// Of the mean: less is nobody's trouble.
const SHARE_LEAST: f64 = 1e-3;

/// The observations of one run, in all and in its second half.
pub(crate) struct Halves {
    middle: f64,
    all: Vec<Mean>,
    late: Vec<Mean>,
}

#[derive(Clone, Copy, Default)]
struct Mean {
    count: u64,
    sum: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
    }

    /// NaN without samples.
    fn value(self) -> f64 {
        self.sum / self.count as f64
    }
}

impl Halves {
    /// Of a run that has not begun.
    pub(crate) fn new(program: &Program) -> Self {
        let none = vec![Mean::default(); program.observes.len()];
        Self { middle: middle(program), all: none.clone(), late: none }
    }
}

impl Recorder for Halves {
    fn sample(&mut self, now: f64, observe: u32, _session: u64, _turn: f64, value: f64, counts: bool) {
        if counts {
            self.all[observe as usize].add(value);
            if now >= self.middle {
                self.late[observe as usize].add(value);
            }
        }
    }
}

fn middle(program: &Program) -> f64 {
    let run = &program.run;
    run.warmup.0 + (run.horizon.0 - run.warmup.0) / 2.0
}

/// One sentence for every observation whose mean the start-up shifts.
pub(crate) fn notes(program: &Program, runs: &[Halves]) -> Vec<String> {
    let mut notes = Vec::new();
    if matches!(program.workload.arrive, Arrive::Trace(_)) {
        // What a trace brings early and late is the trace's.
        return notes;
    }
    for (at, name) in program.observes.iter().enumerate() {
        let means = |half: fn(&Halves) -> &Vec<Mean>| runs.iter().map(move |run| half(run)[at].value());
        let all = means(|run| &run.all);
        let late = means(|run| &run.late);
        let shift = Summary::of(all.clone().zip(late.clone()).map(|(all, late)| all - late));
        let mean = Summary::of(all);
        if is_shifted(&shift, &mean) {
            let (mean, late) = pair(mean.mean, Summary::of(late).mean, 4);
            let middle = middle(program);
            let longer = program.run.horizon.0 + middle - program.run.warmup.0;
            notes.push(format!(
                "observe {name}: mean {mean} in all and {late} in the second half of the runs: they start up, \
                 or the load changes; try --warmup {} --horizon {}",
                exact(middle),
                exact(longer)
            ));
        }
    }
    notes
}

fn is_shifted(shift: &Summary, mean: &Summary) -> bool {
    let size = shift.mean.abs();
    // Seeds that are all the same are one run, and of a scene played once at that.
    let varies = shift.min < shift.max;
    varies
        && shift.count >= SEEDS_LEAST
        && size > 2.0 * shift.ci
        && size > mean.ci
        && size > SHARE_LEAST * mean.mean.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_told_when_it_is_certain_and_matters() {
        let shifted = |shifts: [f64; 5], means: [f64; 5]| is_shifted(&Summary::of(shifts), &Summary::of(means));
        assert!(shifted([-1.0, -1.1, -0.9, -1.0, -1.05], [10.0, 10.1, 9.9, 10.0, 10.2]));
        // Its own interval is too wide, the mean's is, and it is next to nothing.
        assert!(!shifted([-1.0, -2.0, 1.0, -3.0, 0.5], [10.0; 5]));
        assert!(!shifted([-1.0, -1.1, -0.9, -1.0, -1.05], [10.0, 20.0, 5.0, 14.0, 7.0]));
        assert!(!shifted([-1.0e-6, -1.1e-6, -1.0e-6, -1.1e-6, -1.0e-6], [10.0; 5]));
        assert!(!shifted([-1.0; 5], [10.0; 5]));
        assert!(!is_shifted(&Summary::of([1.0; 4]), &Summary::of([10.0; 4])));
    }
}
