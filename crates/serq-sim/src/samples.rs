//! The samples of one observation, in bounded memory.
//!
//! Up to [`EXACT_MAX`] samples, of the parts of something observed to [`EXACT_PARTS`],
//! everything is exact. Above that (and not with `exact`), batches double in size instead of growing in number, and quantiles come
//! from a sketch: a count per interval of values, an interval being a power of two
//! divided in 1024, so that a quantile is off by at most 0.05 %. Mean and variance
//! stay exact sums.

use crate::statistics::{BATCHES, half_width};

/// Samples kept one by one.
pub(crate) const EXACT_MAX: usize = 65_536;
/// … where what they are parts of is kept itself.
pub(crate) const EXACT_PARTS: usize = 8_192;
/// Batches a sketch begins with; at twice as many, neighbours are joined.
const SKETCH_BATCHES: usize = 512;

/// The quantiles a report has.
pub(crate) const QUANTILES: [f64; 4] = [0.50, 0.90, 0.95, 0.99];

/// Figures of a list of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) ci: f64,
    pub(crate) cv2: f64,
    pub(crate) quantiles: [f64; 4],
    /// The quantiles and the interval are a sketch's.
    pub(crate) sketched: bool,
}

/// Samples, in the order they were taken.
#[derive(Debug)]
pub struct Samples {
    /// In the order they were taken.
    kept: Vec<f64>,
    /// So many at most.
    most: usize,
    sketch: Option<Box<Sketch>>,
}

#[derive(Debug)]
struct Sketch {
    count: u64,
    /// Sums of x − shift and its square: no cancellation where the mean is far from 0.
    shift: f64,
    sum: f64,
    squares: f64,
    pages: Pages,
    batch_size: u64,
    batches: Vec<f64>,
    /// The batch being filled.
    filling: (u64, f64),
}

/// Count and sum of each interval: in pages of neighbours, of which those are there that have a
/// sample, each in the first free place from the one its number's last bits say.
#[derive(Debug)]
struct Pages {
    /// A power of two, at most half of them taken.
    places: Vec<Option<(i64, Box<Page>)>>,
    taken: usize,
}

type Page = [(u64, f64); PAGE];
const PAGE: usize = 32;

impl Pages {
    fn new() -> Self {
        Self { places: vec![None; 16], taken: 0 }
    }

    fn place(&self, number: i64) -> usize {
        let last = self.places.len() - 1;
        let mut at = number as usize & last;
        while self.places[at].as_ref().is_some_and(|(other, _)| *other != number) {
            at = (at + 1) & last;
        }
        at
    }

    fn interval(&mut self, interval: i64) -> &mut (u64, f64) {
        let number = interval.div_euclid(PAGE as i64);
        let mut at = self.place(number);
        if self.places[at].is_none() {
            self.taken += 1;
            if 2 * self.taken > self.places.len() {
                let more = vec![None; 2 * self.places.len()];
                for page in std::mem::replace(&mut self.places, more).into_iter().flatten() {
                    let at = self.place(page.0);
                    self.places[at] = Some(page);
                }
                at = self.place(number);
            }
        }
        let (_, page) = self.places[at].get_or_insert_with(|| (number, Box::new([(0, 0.0); PAGE])));
        &mut page[interval.rem_euclid(PAGE as i64) as usize]
    }

    /// In the order of their values.
    fn intervals(&self) -> Vec<(u64, f64)> {
        let mut pages: Vec<_> = self.places.iter().flatten().collect();
        pages.sort_unstable_by_key(|(number, _)| *number);
        pages.into_iter().flat_map(|(_, page)| **page).filter(|(count, _)| *count > 0).collect()
    }
}

impl Samples {
    /// None. `exact` keeps all of them, however many there are.
    pub fn new(exact: bool) -> Self {
        Self::up_to(EXACT_MAX, exact)
    }

    /// Kept one by one up to so many, or all.
    pub(crate) fn up_to(most: usize, exact: bool) -> Self {
        Self { kept: Vec::new(), most: if exact { usize::MAX } else { most }, sketch: None }
    }

    /// One more.
    pub fn push(&mut self, value: f64) {
        match &mut self.sketch {
            Some(sketch) => sketch.push(value),
            None if self.kept.len() == self.most => {
                let mut sketch = Box::new(Sketch::of(&self.kept));
                sketch.push(value);
                self.sketch = Some(sketch);
                self.kept = Vec::new();
            }
            None => self.kept.push(value),
        }
    }

    /// The figures so far.
    pub(crate) fn summarise(&self) -> Summary {
        match &self.sketch {
            Some(sketch) => sketch.summarise(),
            None => summarise(&self.kept),
        }
    }
}

fn summarise(samples: &[f64]) -> Summary {
    let n = samples.len();
    let count = n as f64;
    if n == 0 {
        let quantiles = [f64::NAN; 4];
        return Summary { count: 0, mean: f64::NAN, ci: f64::NAN, cv2: f64::NAN, quantiles, sketched: false };
    }
    let mean = samples.iter().sum::<f64>() / count;
    let ci = if n < 2 * BATCHES {
        f64::NAN
    } else {
        let size = n / BATCHES;
        let mut means = [0.0; BATCHES];
        for (batch, mean) in samples.chunks_exact(size).zip(&mut means) {
            *mean = batch.iter().sum::<f64>() / size as f64;
        }
        half_width(&means)
    };
    let cv2 = if n < 2 || mean == 0.0 {
        f64::NAN
    } else {
        samples.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (count - 1.0) / (mean * mean)
    };
    // Each is searched in what is above the one before.
    let mut ranks: Vec<i64> = samples.iter().map(|sample| rank_of(sample.to_bits())).collect();
    let mut from = 0;
    let quantiles = QUANTILES.map(|q| {
        let at = ((q * count).ceil() as usize).clamp(1, n) - 1;
        let (_, quantile, _) = ranks[from..].select_nth_unstable(at - from);
        from = at;
        f64::from_bits(rank_of(*quantile as u64) as u64)
    });
    Summary { count: n as u64, mean, ci, cv2, quantiles, sketched: false }
}

/// A number that orders as the double with these bits does (`f64::total_cmp`); of that number's
/// bits, the double's again.
fn rank_of(bits: u64) -> i64 {
    let bits = bits as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

impl Sketch {
    fn of(samples: &[f64]) -> Self {
        let mut sketch = Self {
            count: 0,
            shift: samples.iter().sum::<f64>() / samples.len() as f64,
            sum: 0.0,
            squares: 0.0,
            pages: Pages::new(),
            batch_size: (samples.len() / SKETCH_BATCHES) as u64,
            batches: Vec::new(),
            filling: (0, 0.0),
        };
        samples.iter().for_each(|sample| sketch.push(*sample));
        sketch
    }

    fn push(&mut self, value: f64) {
        self.count += 1;
        let off = value - self.shift;
        self.sum += off;
        self.squares += off * off;
        let interval = self.pages.interval(interval(value));
        interval.0 += 1;
        interval.1 += value;
        self.filling.0 += 1;
        self.filling.1 += value;
        if self.filling.0 == self.batch_size {
            self.batches.push(self.filling.1 / self.batch_size as f64);
            self.filling = (0, 0.0);
        }
        if self.batches.len() == 2 * SKETCH_BATCHES {
            self.batches = self.batches.chunks_exact(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
            self.batch_size *= 2;
        }
    }

    fn summarise(&self) -> Summary {
        let n = self.count as f64;
        let mean = self.shift + self.sum / n;
        let variance = (self.squares - self.sum * self.sum / n) / (n - 1.0);
        let each = self.batches.len() / BATCHES;
        let mut means = [0.0; BATCHES];
        for (group, mean) in self.batches.chunks_exact(each).zip(&mut means) {
            *mean = group.iter().sum::<f64>() / each as f64;
        }
        Summary {
            count: self.count,
            mean,
            ci: half_width(&means),
            cv2: if mean == 0.0 { f64::NAN } else { variance / (mean * mean) },
            quantiles: self.quantiles(),
            sketched: true,
        }
    }

    fn quantiles(&self) -> [f64; 4] {
        let intervals = self.pages.intervals();
        QUANTILES.map(|q| {
            let rank = (q * self.count as f64).ceil() as u64;
            let mut seen = 0;
            let reaches = |(count, _): &&(u64, f64)| {
                seen += count;
                seen >= rank
            };
            intervals.iter().find(reaches).map_or(f64::NAN, |(count, sum)| sum / *count as f64)
        })
    }
}

/// The number of the interval a value is in; intervals order as values do.
fn interval(value: f64) -> i64 {
    let magnitude = (value.abs().to_bits() >> 42) as i64;
    if value < 0.0 { -magnitude - 1 } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deterministic stream with a trend, negative values and a heavy tail.
    fn values(n: u64) -> impl Iterator<Item = f64> {
        (0..n).map(move |k| {
            let u = (k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64;
            1.0 / (1.0 - u).sqrt() - 1.5 + k as f64 / n as f64
        })
    }

    #[test]
    fn ranks_order_as_doubles_do_and_give_them_back() {
        let mut doubles = vec![f64::NEG_INFINITY, -2.5, -1e-300, -0.0, 0.0, 1e-300, 0.3, 2.5, 1e300, f64::INFINITY];
        doubles.push(f64::NAN);
        let ranks: Vec<i64> = doubles.iter().map(|x| rank_of(x.to_bits())).collect();
        assert!(ranks.is_sorted());
        for (rank, double) in ranks.iter().zip(&doubles) {
            assert_eq!(rank_of(*rank as u64) as u64, double.to_bits());
        }
    }

    #[test]
    fn below_the_bound_everything_is_kept() {
        let mut samples = Samples::new(false);
        values(EXACT_MAX as u64).for_each(|v| samples.push(v));
        assert!(!samples.summarise().sketched);
    }

    #[test]
    fn above_the_bound_the_sketch_is_close_to_exact() {
        let (mut sketched, mut exact) = (Samples::new(false), Samples::new(true));
        for value in values(300_000) {
            sketched.push(value);
            exact.push(value);
        }
        let (sketched, exact) = (sketched.summarise(), exact.summarise());
        assert!(sketched.sketched && !exact.sketched);
        assert_eq!(sketched.count, exact.count);
        assert!((sketched.mean / exact.mean - 1.0).abs() < 1e-12);
        assert!((sketched.cv2 / exact.cv2 - 1.0).abs() < 1e-9);
        for (a, b) in sketched.quantiles.iter().zip(&exact.quantiles) {
            assert!((a - b).abs() <= 1e-3 * b.abs(), "{a} and {b}");
        }
        // The trend makes the batch means spread alike; a rest of up to a 27th is not in the sketch.
        assert!((sketched.ci / exact.ci - 1.0).abs() < 0.1, "{} and {}", sketched.ci, exact.ci);
    }
}
