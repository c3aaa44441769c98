//! Averages over time and over samples, as the report defines them.

/// Windows a time average's interval is made of, and batches a sample mean's.
pub(crate) const BATCHES: usize = 20;
/// Student's t, 19 degrees of freedom, two-sided 95 %.
const T_19: f64 = 2.093;

/// The time average of a value that is constant between changes.
///
/// The area grows only when the value changes, so that it does not depend on how
/// many events looked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeAverage {
    value: f64,
    since: f64,
    area: f64,
}

impl TimeAverage {
    /// Answers whether the value is another one.
    #[inline]
    pub(crate) fn set(&mut self, now: f64, value: f64) -> bool {
        let changes = value != self.value;
        if changes {
            self.area += self.value * (now - self.since);
            self.since = now;
            self.value = value;
        }
        changes
    }

    /// Forgets what was before.
    pub(crate) fn restart(&mut self, now: f64) {
        self.area = 0.0;
        self.since = now;
    }

    pub(crate) fn mean(&self, from: f64, to: f64) -> f64 {
        (self.area + self.value * (to - self.since)) / (to - from)
    }
}

/// A time average in twenty equal windows of [from, to]. To be set on change only, like
/// [`TimeAverage`].
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    from: f64,
    width: f64,
    areas: [f64; BATCHES],
    /// The window `since` is in, and its end.
    at: usize,
    end: f64,
    value: f64,
    since: f64,
}

impl Windows {
    pub(crate) fn new(from: f64, to: f64, value: f64) -> Self {
        let width = (to - from) / BATCHES as f64;
        Self { from, width, areas: [0.0; BATCHES], at: 0, end: from + width, value, since: from }
    }

    /// The value changes at `now`.
    #[inline]
    pub(crate) fn set(&mut self, now: f64, value: f64) {
        if now > self.end {
            self.enter_window(now);
        }
        if now > self.since {
            self.areas[self.at] += self.value * (now - self.since);
            self.since = now;
        }
        self.value = value;
    }

    #[inline(never)]
    fn enter_window(&mut self, now: f64) {
        while now > self.end {
            self.areas[self.at] += self.value * (self.end - self.since);
            self.since = self.end;
            self.at += 1;
            let last = self.at == BATCHES - 1;
            self.end = if last { f64::INFINITY } else { self.from + self.width * (self.at + 1) as f64 };
        }
    }

    /// The windows' averages, once the value was set at the end.
    pub(crate) fn means(&self) -> [f64; BATCHES] {
        self.areas.map(|area| area / self.width)
    }
}

/// Windows a [`Doubling`] has: enough that a twentieth of any end has 64 of them.
const NARROW: usize = 128 * BATCHES;

/// A time average in twenty equal windows of [from, an end that is not known yet], in
/// bounded memory: narrow windows, made twice as wide whenever time passes the last one. An end
/// of the twenty that falls inside a narrow one splits it as if its value were constant.
#[derive(Clone, Debug)]
pub(crate) struct Doubling {
    from: f64,
    width: f64,
    areas: Vec<f64>,
    /// The narrow window `since` is in.
    at: usize,
    value: f64,
    since: f64,
}

impl Doubling {
    /// With the values so far: (time, value), of which the last is after `from`.
    pub(crate) fn new(from: f64, points: &[(f64, f64)]) -> Self {
        let last = points.last().map_or(from, |(time, _)| *time);
        let width = (last - from) / (NARROW / 2) as f64;
        let mut doubling = Self { from, width, areas: vec![0.0; NARROW], at: 0, value: 0.0, since: from };
        points.iter().for_each(|(time, value)| doubling.set(*time, *value));
        doubling
    }

    /// The value changes at `now`.
    pub(crate) fn set(&mut self, now: f64, value: f64) {
        while now > self.from + self.width * NARROW as f64 {
            for at in 0..NARROW / 2 {
                self.areas[at] = self.areas[2 * at] + self.areas[2 * at + 1];
            }
            self.areas[NARROW / 2..].fill(0.0);
            self.width *= 2.0;
            self.at /= 2;
        }
        while self.since < now {
            let end = if self.at + 1 == NARROW { now } else { self.from + self.width * (self.at + 1) as f64 };
            let until = now.min(end);
            self.areas[self.at] += self.value * (until - self.since).max(0.0);
            self.since = until.max(self.since);
            self.at += usize::from(until == end && self.at + 1 < NARROW);
        }
        self.value = value;
    }

    /// The averages of the twenty windows up to the time last set.
    pub(crate) fn means(&self) -> [f64; BATCHES] {
        let width = (self.since - self.from) / BATCHES as f64;
        let area_until = |time: f64| {
            let narrow = (time - self.from) / self.width;
            let whole = (narrow as usize).min(self.at);
            // The last narrow window ends where time does.
            let end = (self.from + self.width * (whole + 1) as f64).min(self.since);
            let begin = self.from + self.width * whole as f64;
            let part = if end > begin { ((time - begin) / (end - begin)).clamp(0.0, 1.0) } else { 0.0 };
            self.areas[..whole].iter().sum::<f64>() + part * self.areas[whole]
        };
        std::array::from_fn(|k| {
            let end = |k: usize| if k == BATCHES { self.since } else { self.from + width * k as f64 };
            (area_until(end(k + 1)) - area_until(end(k))) / width
        })
    }
}

/// How many, and their sum, of values that come in runs of equal ones. A run adds to the sum
/// once, as a whole, so that n at once and n single ones give the same bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Runs {
    count: u64,
    sum: f64,
    value: f64,
    run: u64,
}

impl Runs {
    pub(crate) fn add(&mut self, value: f64, count: u64) {
        if value != self.value {
            (self.count, self.sum) = self.total();
            self.value = value;
            self.run = 0;
        }
        self.run += count;
    }

    /// Count and sum.
    pub(crate) fn total(&self) -> (u64, f64) {
        // A count below 2⁶³ is a double sooner as a signed one.
        (self.count + self.run, self.sum + self.value * self.run as i64 as f64)
    }
}

/// Half-width of the 95 % interval of a mean from twenty batch means.
pub(crate) fn half_width(means: &[f64; BATCHES]) -> f64 {
    let n = BATCHES as f64;
    let mean = means.iter().sum::<f64>() / n;
    let variance = means.iter().map(|m| (m - mean) * (m - mean)).sum::<f64>() / (n - 1.0);
    T_19 * (variance / n).sqrt()
}

/// Student's t of the slope of a straight line through equally spaced values.
pub(crate) fn trend(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let middle = (n - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / n;
    let spread: f64 = (0..values.len()).map(|k| (k as f64 - middle) * (k as f64 - middle)).sum();
    let slope = values.iter().enumerate().map(|(k, v)| (k as f64 - middle) * (v - mean)).sum::<f64>() / spread;
    let rest: f64 = values
        .iter()
        .enumerate()
        .map(|(k, v)| {
            let error = v - mean - slope * (k as f64 - middle);
            error * error
        })
        .sum();
    slope / (rest / (n - 2.0) / spread).sqrt()
}

/// Gaps between tokens: exact mean, quantiles to 0.5 %.
///
/// Bucket k holds gaps in [1.01^k, 1.01^(k+1)) and answers with its middle, 1.01^(k+½),
/// or with the nearest gap it has seen where that is not between its least and greatest:
/// a constant gap is itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    /// Number of the first bucket.
    first: i32,
    buckets: Vec<Bucket>,
    /// The bucket the latest gap fell into: the next one usually does too.
    latest: usize,
    runs: Runs,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Gaps between these are in it; found by their logarithm, some at its edges too.
    low: f64,
    high: f64,
    count: u64,
    least: f64,
    greatest: f64,
}

impl Bucket {
    #[inline]
    fn add(&mut self, gap: f64, count: u64) {
        self.count += count;
        if gap < self.least {
            self.least = gap;
        }
        if gap > self.greatest {
            self.greatest = gap;
        }
    }
}

const EMPTY: Bucket = Bucket { low: 0.0, high: 0.0, count: 0, least: f64::INFINITY, greatest: 0.0 };
/// Gaps are told apart from 1e-17 to 1e17 clock units.
const BUCKETS: f64 = 4_000.0;
/// The natural logarithm of 1.01.
const LN_1_01: f64 = 0.009_950_330_853_168_092;

impl Gaps {
    #[inline]
    pub(crate) fn add(&mut self, gap: f64, count: u64) {
        if gap == self.runs.value && self.runs.run > 0 {
            self.runs.run += count;
            self.buckets[self.latest].count += count;
        } else {
            self.add_another(gap, count);
        }
    }

    fn add_another(&mut self, gap: f64, count: u64) {
        self.runs.add(gap, count);
        match self.buckets.get_mut(self.latest) {
            Some(latest) if latest.low <= gap && gap < latest.high => latest.add(gap, count),
            _ => self.add_elsewhere(gap, count),
        }
    }

    #[inline(never)]
    fn add_elsewhere(&mut self, gap: f64, count: u64) {
        self.latest = self.find(gap);
        self.buckets[self.latest].add(gap, count);
    }

    fn find(&mut self, gap: f64) -> usize {
        let k = (libm::log(gap) / LN_1_01).floor().clamp(-BUCKETS, BUCKETS) as i32;
        if self.buckets.is_empty() {
            self.first = k;
        }
        if k < self.first {
            self.buckets.splice(0..0, std::iter::repeat_n(EMPTY, (self.first - k) as usize));
            self.first = k;
        }
        let at = (k - self.first) as usize;
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, EMPTY);
        }
        let bucket = &mut self.buckets[at];
        if bucket.count == 0 {
            // A little inside, so that a gap at an edge is always found by its logarithm.
            let edge = |k: i32| libm::pow(1.01, f64::from(k));
            (bucket.low, bucket.high) = (edge(k) * (1.0 + 1e-12), edge(k + 1) * (1.0 - 1e-12));
        }
        at
    }

    pub(crate) fn mean(&self) -> f64 {
        let (count, sum) = self.runs.total();
        sum / count as f64
    }

    pub(crate) fn quantile(&self, q: f64) -> f64 {
        let rank = (q * self.runs.total().0 as f64).ceil() as u64;
        let mut seen = 0;
        for (k, bucket) in (self.first..).zip(&self.buckets) {
            seen += bucket.count;
            if bucket.count > 0 && seen >= rank {
                return libm::pow(1.01, f64::from(k) + 0.5).clamp(bucket.least, bucket.greatest);
            }
        }
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_split_what_is_held_across_them() {
        let mut windows = Windows::new(10.0, 30.0, 2.0);
        windows.set(11.5, 4.0);
        windows.set(30.0, 0.0);
        let means = windows.means();
        assert_eq!(means[0], 2.0);
        assert_eq!(means[1], 3.0);
        assert!(means[2..].iter().all(|m| *m == 4.0));
    }

    /// A value that wanders for a time not known before: the twenty means are near those of
    /// windows cut at the right places, and their mean is the same.
    #[test]
    fn windows_of_an_unknown_end_are_near_those_of_a_known_one() {
        let (from, step) = (50.0, 0.37);
        for points in [2_000, 70_001, 300_000] {
            let value = |k: u32| f64::from(k.wrapping_mul(2_654_435_761) >> 24) + f64::from(k) * 1e-3;
            let end = f64::from(points) * step;
            let mut known = Windows::new(from, end, 0.0);
            let early: Vec<(f64, f64)> = (0..1_500).map(|k| (f64::from(k) * step, value(k))).collect();
            let mut unknown = Doubling::new(from, &early);
            for k in 0..points {
                known.set(f64::from(k) * step, value(k));
                if k >= 1_500 {
                    unknown.set(f64::from(k) * step, value(k));
                }
            }
            known.set(end, 0.0);
            unknown.set(end, 0.0);
            let (known, unknown) = (known.means(), unknown.means());
            let mean = |means: &[f64; BATCHES]| means.iter().sum::<f64>() / BATCHES as f64;
            assert!((mean(&known) / mean(&unknown) - 1.0).abs() < 1e-9);
            for (a, b) in known.iter().zip(&unknown) {
                assert!((a / b - 1.0).abs() < 0.02, "{a} and {b}");
            }
            assert!((half_width(&known) / half_width(&unknown) - 1.0).abs() < 0.05);
        }
    }

    #[test]
    fn a_straight_line_has_an_infinite_trend_and_noise_has_none() {
        assert!(trend(&[1.0, 2.0, 3.0, 4.0, 5.0]) > 1e6);
        assert!(trend(&[1.0, 2.0, 1.0, 2.0, 1.0]).abs() < 1.0);
    }

    #[test]
    fn the_logarithm_written_down_is_the_one_computed() {
        assert_eq!(LN_1_01.to_bits(), libm::log(1.01).to_bits());
    }

    #[test]
    fn a_constant_gap_is_itself_and_others_are_their_buckets_middle() {
        let mut gaps = Gaps::default();
        [3.0, 1.0, 1.0, 29.0].iter().for_each(|gap| gaps.add(*gap, 1));
        assert_eq!((gaps.quantile(0.5), gaps.quantile(0.99), gaps.mean()), (1.0, 29.0, 8.5));
        [1.001, 1.009, 1.002].iter().for_each(|gap| gaps.add(*gap, 1));
        assert!((gaps.quantile(0.5) - 1.01f64.sqrt()).abs() < 1e-12);
        let mut zero = Gaps::default();
        zero.add(0.0, 1);
        assert_eq!(zero.quantile(0.5), 0.0);
    }
}
