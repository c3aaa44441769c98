//! A figure over time in bounded memory: least, mean and greatest in each of some hundred
//! stretches of equal length.
//!
//! # Invariants
//!
//! - A value counts for as long as it was held; one that was held for no time leaves no trace.
//! - Where the end is not known before, stretches are joined in pairs as time goes on.

/// Most stretches. Twice what a chart has pixels for would be wasted.
const STRETCHES: usize = 240;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    low: f64,
    high: f64,
    area: f64,
    time: f64,
}

impl Stretch {
    const NONE: Self = Self { low: f64::INFINITY, high: f64::NEG_INFINITY, area: 0.0, time: 0.0 };

    fn hold(&mut self, value: f64, time: f64) {
        self.low = self.low.min(value);
        self.high = self.high.max(value);
        self.area += value * time;
        self.time += time;
    }

    fn join(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            area: self.area + other.area,
            time: self.time + other.time,
        }
    }
}

/// What is drawn of a stretch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Its middle.
    pub(super) time: f64,
    pub(super) low: f64,
    pub(super) mean: f64,
    pub(super) high: f64,
}

/// The figure.
#[derive(Clone, Debug)]
pub(super) struct Series {
    width: f64,
    stretches: Vec<Stretch>,
    value: f64,
    since: f64,
}

impl Series {
    /// From 0, for a run that ends at `horizon`, or some time before it.
    pub(super) fn new(horizon: f64, ends_there: bool) -> Self {
        // So that the stretches of a run that ends long before still are many.
        let joined_at_most = if ends_there { 1.0 } else { f64::from(1u32 << 30) };
        let width = (horizon / STRETCHES as f64 / joined_at_most).max(f64::MIN_POSITIVE);
        Self { width, stretches: Vec::new(), value: 0.0, since: 0.0 }
    }

    /// The value is another one from now on.
    pub(super) fn set(&mut self, now: f64, value: f64) {
        if value != self.value {
            self.hold(now);
            self.value = value;
        }
    }

    /// The run is over.
    pub(super) fn finish(&mut self, end: f64) {
        self.hold(end);
    }

    fn hold(&mut self, now: f64) {
        while now > self.width * STRETCHES as f64 * (1.0 + 1e-12) {
            self.stretches =
                self.stretches.chunks(2).map(|pair| pair[0].join(*pair.get(1).unwrap_or(&Stretch::NONE))).collect();
            self.width *= 2.0;
        }
        while self.since < now {
            let at = ((self.since / self.width) as usize).min(STRETCHES - 1);
            let end = self.width * (at + 1) as f64;
            // Rounding may put `since` on the edge it stands at.
            let (at, end) = if end > self.since { (at, end) } else { (at + 1, end + self.width) };
            let until = if at + 1 >= STRETCHES { now } else { end.min(now) };
            if self.stretches.len() <= at {
                self.stretches.resize(at + 1, Stretch::NONE);
            }
            self.stretches[at].hold(self.value, until - self.since);
            self.since = until;
        }
    }

    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        let held = self.stretches.iter().enumerate().filter(|(_, stretch)| stretch.time > 0.0);
        held.map(|(at, stretch)| Point {
            time: self.width * (at as f64 + 0.5),
            low: stretch.low,
            mean: stretch.area / stretch.time,
            high: stretch.high,
        })
    }

    /// The greatest value.
    pub(super) fn peak(&self) -> f64 {
        self.stretches.iter().map(|stretch| stretch.high).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_has_what_was_held_in_it() {
        let mut series = Series::new(240.0, true);
        series.set(0.0, 2.0);
        series.set(0.25, 6.0);
        series.set(1.5, 0.0);
        series.set(1.5, 9.0);
        series.finish(3.0);
        let points: Vec<Point> = series.points().collect();
        let expected = [(0.5, 2.0, 5.0, 6.0), (1.5, 6.0, 7.5, 9.0), (2.5, 9.0, 9.0, 9.0)];
        let expected = expected.map(|(time, low, mean, high)| Point { time, low, mean, high });
        assert_eq!(points, expected);
        assert_eq!(series.peak(), 9.0);
    }

    /// A sawtooth over a time nobody knew before: few points, and nothing lost of its extent or area.
    #[test]
    fn memory_is_bounded_and_the_area_stays() {
        let mut series = Series::new(1e9, false);
        for step in 0..100_000u32 {
            series.set(f64::from(step) * 0.25, f64::from(step % 7));
        }
        series.finish(25_000.0);
        let points: Vec<Point> = series.points().collect();
        assert!((STRETCHES / 2 - 1..=STRETCHES).contains(&points.len()), "{}", points.len());
        let area: f64 = series.stretches.iter().map(|stretch| stretch.area).sum();
        let expected: f64 = (0..100_000u32).map(|step| 0.25 * f64::from(step % 7)).sum();
        assert!((area - expected).abs() < 1e-6 * expected, "{area}, not {expected}");
        assert!(points.iter().all(|point| point.low == 0.0 && point.high == 6.0));
    }
}
