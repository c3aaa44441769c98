//! How samples are spread, in bounded memory: a count for each hundred-and-twenty-eighth of a
//! power of two. A quantile is off by at most 0.8 %.

use std::collections::BTreeMap;

/// Bits of a double below an interval's: 52 of the fraction less 7.
const SHIFT: u32 = 45;

/// Samples so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    /// By [`key`].
    counts: BTreeMap<i64, u64>,
    count: u64,
    greatest: f64,
}

/// The interval a value is in; keys order as values do, and 0 has its own.
fn key(value: f64) -> i64 {
    let magnitude = (value.abs().to_bits() >> SHIFT) as i64 + 1;
    if value > 0.0 {
        magnitude
    } else if value < 0.0 {
        -magnitude
    } else {
        0
    }
}

/// The upper end of an interval.
fn upper(key: i64) -> f64 {
    match key {
        0 => 0.0,
        key if key > 0 => f64::from_bits((key as u64) << SHIFT),
        key => -f64::from_bits(((-key - 1) as u64) << SHIFT),
    }
}

impl Distribution {
    /// What is no finite number is left out.
    pub(super) fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.greatest = if self.count == 0 { value } else { self.greatest.max(value) };
            *self.counts.entry(key(value)).or_default() += 1;
            self.count += 1;
        }
    }

    pub(super) fn greatest(&self) -> f64 {
        self.greatest
    }

    /// Whether there is something to see in a curve: more than a yes or no.
    pub(super) fn is_spread(&self) -> bool {
        self.counts.len() > 2
    }

    /// The ⌈qn⌉-th smallest, at the upper end of its interval; 0 of nothing.
    pub(super) fn quantile(&self, q: f64) -> f64 {
        let rank = (q * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (&key, &count) in &self.counts {
            below += count;
            if below >= rank {
                return upper(key).min(self.greatest);
            }
        }
        0.0
    }

    /// Values and the share of samples at or below them.
    pub(super) fn steps(&self) -> impl Iterator<Item = (f64, f64)> {
        let mut below = 0;
        self.counts.iter().map(move |(&key, &count)| {
            below += count;
            (upper(key).min(self.greatest), below as f64 / self.count as f64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_hundredth() {
        let mut distribution = Distribution::default();
        for step in 1..=10_000u32 {
            distribution.add(f64::from(step) * 0.001);
        }
        for q in [0.01, 0.25, 0.5, 0.9, 0.99, 1.0] {
            let (found, exact) = (distribution.quantile(q), q * 10.0);
            assert!((exact..=exact * 1.01).contains(&found), "{q}: {found}, not {exact}");
        }
        let last = distribution.steps().last();
        assert_eq!(last, Some((10.0, 1.0)));
    }

    #[test]
    fn signs_and_nothing_keep_their_order() {
        let mut distribution = Distribution::default();
        for value in [3.0, -2.0, 0.0, f64::NAN, f64::INFINITY] {
            distribution.add(value);
        }
        let values: Vec<f64> = distribution.steps().map(|(value, _)| value).collect();
        assert_eq!((distribution.count, values.len()), (3, 3));
        assert!(values[0] <= -1.98 && values[1] == 0.0 && values[2] == 3.0, "{values:?}");
    }
}
