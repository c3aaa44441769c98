//! Random numbers: each a function of the seed, the stream and the stream's counter.
//!
//! No state is kept, so what one session draws does not depend on what the others
//! do, on the machine's settings, or on threads; and neighbouring seeds share nothing.
//! The mixer is Pelle Evensen's *moremur* (2019), applied once per input word.

use crate::world::{Purpose, Stream};

/// All draws of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// The draws of a seed.
    pub fn new(seed: u64) -> Self {
        Self { key: mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) }
    }

    /// A number in [0, 1) with 53 random bits.
    #[inline]
    pub fn uniform(&self, stream: Stream) -> f64 {
        let purpose = match stream.purpose {
            Purpose::Arrivals => 1,
            Purpose::Turn => 2,
            Purpose::Session => 3,
            Purpose::Stage => 4,
            Purpose::Pool => 5,
            Purpose::TraceChoice => 6,
            Purpose::Leg => 7,
        };
        let mut hash = self.key;
        for word in [purpose, stream.owner, stream.turn, stream.counter] {
            hash = mix(hash.rotate_left(29).wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ word);
        }
        (hash >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x ^= x >> 27;
    x = x.wrapping_mul(0x3c79_ac49_2ba7_b653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1c69_b3f7_4ac4_ae35);
    x ^ (x >> 27)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(owner: u64, turn: u64, counter: u64) -> Stream {
        Stream { purpose: Purpose::Session, owner, turn, counter }
    }

    /// Draws of neighbouring seeds, sessions, turns and counters: no pair of neighbours is
    /// correlated, and each list is uniform (mean 1/2, variance 1/12), to 5 standard errors.
    #[test]
    fn neighbours_are_independent() {
        let n = 20_000;
        let lists: Vec<Vec<f64>> = vec![
            (0..n).map(|k| Draws::new(k).uniform(stream(0, 0, 0))).collect(),
            (0..n).map(|k| Draws::new(k + 1).uniform(stream(0, 0, 0))).collect(),
            (0..n).map(|k| Draws::new(1).uniform(stream(k, 0, 0))).collect(),
            (0..n).map(|k| Draws::new(2).uniform(stream(k + 1, 0, 0))).collect(),
            (0..n).map(|k| Draws::new(1).uniform(stream(7, k, 0))).collect(),
            (0..n).map(|k| Draws::new(1).uniform(stream(7, 0, k))).collect(),
            (0..n).map(|k| Draws::new(1).uniform(stream(8, 0, k))).collect(),
        ];
        let n = n as f64;
        for (at, list) in lists.iter().enumerate() {
            let mean = list.iter().sum::<f64>() / n;
            assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / n).sqrt(), "list {at}: mean {mean}");
            let squares = list.iter().map(|u| (u - 0.5) * (u - 0.5)).sum::<f64>() / n;
            assert!((squares - 1.0 / 12.0).abs() < 5.0 * (1.0 / 180.0 / n).sqrt(), "list {at}: variance {squares}");
            for (other, second) in lists.iter().enumerate().skip(at + 1) {
                // Lists that are one another's shift by construction are compared in place too.
                let product: f64 = list.iter().zip(second).map(|(a, b)| (a - 0.5) * (b - 0.5)).sum::<f64>() / n * 12.0;
                let related = at == 0 && other == 1;
                assert!(related || product.abs() < 5.0 / n.sqrt(), "lists {at} and {other}: {product}");
            }
        }
    }

    #[test]
    fn a_draw_is_the_same_everywhere() {
        assert_eq!(Draws::new(1).uniform(stream(0, 0, 0)), Draws::new(1).uniform(stream(0, 0, 0)));
        assert_ne!(Draws::new(1).uniform(stream(0, 0, 0)), Draws::new(1).uniform(stream(0, 0, 1)));
    }
}
