//! Leaps in virtual time: when each step of a run of equal ones ends.
//!
//! Steps of one cost, each starting where the one before ended, are a *run*: its j-th
//! step ends at start + j × cost, whether the steps were taken singly or many at once.
//! A leap has one event, at the end of its last step.
//!
//! # Invariants
//!
//! - Results do not depend on which steps are leapt over. Where another event falls exactly
//!   on the end of a step inside a leap, the leap is broken there first
//!   ([`Leaps::broken_at`]), so everything due at an instant is an event; and such an end
//!   is scheduled as of the end of the step before it, as single steps are.
//! - Two leaps whose steps were scheduled at one instant go in declaration order: nothing else
//!   happened at that instant, or both would have been broken there.

/// Leaps that go on at one time, at most: all are asked at every instant. With more engines
/// than that busy, leaping pays little: some event comes between any two of their steps.
const LEAPS_MAX: usize = 1_024;

/// A leap's cost is at least this fraction of its end's time, so that its steps are apart.
const COST_MIN: f64 = 1e-12;

/// Steps of one cost of one stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRun {
    start: f64,
    cost: f64,
    /// Steps before the present ones.
    before: u64,
    /// The present ones: one, or a leap.
    pub(crate) steps: u64,
    /// The order in which the first of them would have been scheduled.
    pub(crate) first_order: u64,
    /// When the last of them ends.
    pub(crate) last: f64,
    /// The sequence number of that event.
    pub(crate) event: u64,
    /// Their place in [`Leaps`].
    place: usize,
}

const NOWHERE: usize = usize::MAX;

/// No stage.
pub(crate) const NO_STAGE: u32 = u32::MAX;

impl StepRun {
    pub(crate) const NONE: Self = Self {
        start: 0.0,
        cost: f64::NAN,
        before: 0,
        steps: 0,
        first_order: 0,
        last: f64::NAN,
        event: 0,
        place: NOWHERE,
    };

    /// The end of the present ones' `step`-th; their start for 0.
    #[inline]
    pub(crate) fn end(&self, step: u64) -> f64 {
        self.start + (self.before + step) as i64 as f64 * self.cost
    }

    /// Up to `steps` further ones start.
    #[inline]
    pub(crate) fn go_on(&mut self, now: f64, cost: f64, steps: u64, first_order: u64) {
        if self.cost == cost && self.last == now {
            self.before += self.steps;
        } else {
            (self.start, self.cost, self.before) = (now, cost, 0);
        }
        self.first_order = first_order;
        self.stop_after(steps);
        // Steps too short for their time to show are taken singly.
        if cost < COST_MIN * self.last {
            self.stop_after(1);
        }
    }

    /// There are to be so many of them.
    pub(crate) fn stop_after(&mut self, steps: u64) {
        self.steps = steps;
        self.last = self.end(steps);
    }

    /// How many of them have ended before `time`.
    pub(crate) fn ended_before(&self, time: f64) -> u64 {
        let mut step = self.step_near(time).min(self.steps);
        while step > 0 && self.end(step) >= time {
            step -= 1;
        }
        while step < self.steps && self.end(step + 1) < time {
            step += 1;
        }
        step
    }

    /// The number of the step that ends next to `time`.
    fn step_near(&self, time: f64) -> u64 {
        // Saturates: a time before the present ones is their start.
        (((time - self.start) / self.cost + 0.5) as u64).saturating_sub(self.before)
    }
}

/// The leaps that go on, side by side.
#[derive(Debug, Default)]
pub(crate) struct Leaps {
    stages: Vec<u32>,
    starts: Vec<f64>,
    /// 1 / cost.
    rates: Vec<f64>,
    /// Leaps begun, and steps that were no event.
    pub(crate) begun: u64,
    pub(crate) leapt: u64,
}

impl Leaps {
    /// Whether there is no place for a leap of this run.
    pub(crate) fn full(&self, run: &StepRun) -> bool {
        self.stages.len() >= LEAPS_MAX && run.place == NOWHERE
    }

    /// Whether no stage but this one leaps.
    #[inline]
    pub(crate) fn only(&self, runs: &[StepRun], stage: u32) -> bool {
        match self.stages.len() {
            0 => true,
            1 => runs.get(stage as usize).is_some_and(|run| run.place != NOWHERE),
            _ => false,
        }
    }

    /// A leap is to be known here, in the place of the stage's latest where that is.
    pub(crate) fn put(&mut self, stage: u32, run: &mut StepRun) {
        if run.place == NOWHERE {
            run.place = self.stages.len();
            self.stages.push(stage);
            self.starts.push(run.start);
            self.rates.push(1.0 / run.cost);
        } else {
            self.starts[run.place] = run.start;
            self.rates[run.place] = 1.0 / run.cost;
        }
    }

    /// Forgets a stage's leap, if there is one.
    #[inline]
    pub(crate) fn end(&mut self, runs: &mut [StepRun], stage: u32) {
        let place = std::mem::replace(&mut runs[stage as usize].place, NOWHERE);
        if place != NOWHERE {
            self.vacate(runs, place);
        }
    }

    #[inline(never)]
    fn vacate(&mut self, runs: &mut [StepRun], place: usize) {
        self.stages.swap_remove(place);
        self.starts.swap_remove(place);
        self.rates.swap_remove(place);
        if let Some(&moved) = self.stages.get(place) {
            runs[moved as usize].place = place;
        }
    }

    /// A leap, of another stage than `told`, with a step that is not its last and ends exactly
    /// at `time`, and that step.
    pub(crate) fn broken_at(&self, runs: &[StepRun], time: f64, told: u32) -> Option<(u32, u64)> {
        for (at, (start, rate)) in self.starts.iter().zip(&self.rates).enumerate() {
            // Most times are nowhere near a step's end.
            if off_whole((time - start) * rate) > NEAR {
                continue;
            }
            let stage = self.stages[at];
            if stage == told {
                continue;
            }
            let run = &runs[stage as usize];
            let step = run.step_near(time);
            if step > 0 && step < run.steps && run.end(step) == time {
                return Some((stage, step));
            }
        }
        None
    }
}

/// A time this far from a step's end, in steps, is not that end.
const NEAR: f64 = 1e-3;

/// How far a number of steps is from a whole one. They are fewer than 2⁵¹.
#[inline(always)]
fn off_whole(steps: f64) -> f64 {
    // Beyond 2⁵² doubles are whole.
    const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;
    (steps - ((steps + WHOLE) - WHOLE)).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of runs with awkward costs: every step's end is found, and the count before it.
    #[test]
    fn every_end_of_a_step_is_found() {
        for (start, cost) in [(0.0, 0.1), (3.3, 0.0002), (1e5, 0.000_213_7), (7.0, 1.0 / 3.0), (1e6, 2e-4)] {
            let mut runs = [StepRun::NONE];
            runs[0].go_on(start, cost, 3, 0);
            let now = runs[0].last;
            runs[0].go_on(now, cost, 1_000, 0);
            let mut leaps = Leaps::default();
            leaps.put(0, &mut runs[0]);
            for step in 1..1_000 {
                let end = runs[0].end(step);
                assert_eq!(leaps.broken_at(&runs, end, NO_STAGE), Some((0, step)), "{start} {cost} {step}");
                assert_eq!(runs[0].ended_before(end), step - 1);
                assert_eq!(runs[0].ended_before(end.next_up()), step);
                assert_eq!(leaps.broken_at(&runs, end.next_up(), NO_STAGE), None);
            }
            assert_eq!(leaps.broken_at(&runs, runs[0].end(1_000), NO_STAGE), None);
        }
    }
}
