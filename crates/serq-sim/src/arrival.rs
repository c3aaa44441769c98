//! When the next session comes, under the laws that depend on nothing but time, draws and the
//! trace: `poisson`, `bursts`, `trace`.
//!
//! A rate that changes is a Poisson process by inversion: the area under the rate between two
//! arrivals is exponential of mean 1. What is left of it at the end of a piece goes on in the next.
//!
//! ```text
//!   rate │        ┌────────┐
//!        │        │▒▒▒▒│   │         ▒  one increment: begun at the slow rate,
//!        ├────────┘▒▒▒▒│   └───         used up at the fast one
//!        │     ▒▒▒▒▒▒▒▒│
//!        └─────┴───────┴──────── time
//!            before   next
//! ```
//!
//! # Invariants
//!
//! - Increment k is the same number whatever the rates are, so settings are compared with the
//!   same luck; the lengths of `bursts` have a stream of their own.
//! - Neighbouring pieces of one rate are one piece, so pieces of equal rates give the arrivals of
//!   `poisson(rate)` bit for bit.
//! - The pieces of a repeated law are placed from whole rounds, not added up.
//!
//! Inversion is one of the methods Lewis and Shedler compare thinning with [Lewis & Shedler 1979];
//! where the rate is constant it is a division. `bursts` is a Markov-modulated Poisson process
//! [Fischer 1993].

use serq_ir::{Arrive, Piece};
use serq_kernel::{Purpose, Stream};

use crate::trace::TraceFile;
use serq_kernel::Draws;

/// Pieces of `bursts` between two arrivals. More is a slip of the pen: lengths far below the gaps.
const PIECES_MAX: u32 = 1_000_000;

/// The streams of [`Purpose::Arrivals`].
const INCREMENTS: u64 = 0;
const LENGTHS: u64 = 1;

/// An arrival law at work.
pub(crate) enum Arrivals<'a> {
    Poisson { rate: f64 },
    Pieces(Pieces),
    Trace { times: &'a [f64], speed: f64 },
}

/// Where a law of pieces stands.
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    /// `bursts`: the pieces' times are means.
    random: bool,
    repeat: bool,
    at: usize,
    end: f64,
    /// Rounds that are over, in a law that repeats without chance.
    rounds: f64,
    /// How long a round is, and the area under it; a law that does not repeat has none.
    time: f64,
    area: f64,
    /// Lengths drawn.
    lengths: u64,
}

impl<'a> Arrivals<'a> {
    /// The law, or none where the law is not one of these.
    ///
    /// # Errors
    ///
    /// One sentence: arrivals of a trace that says no times.
    pub(crate) fn new(law: &Arrive, trace: Option<&'a TraceFile>, draws: &Draws) -> Result<Option<Self>, String> {
        Ok(Some(match law {
            Arrive::None | Arrive::Renewal(_) | Arrive::Closed(_) | Arrive::Batch(_) => return Ok(None),
            Arrive::Poisson(rate) => Self::Poisson { rate: rate.0 },
            Arrive::Steps { pieces, repeat } => Self::of_pieces(pieces, false, *repeat, draws),
            Arrive::Bursts { pieces } => Self::of_pieces(pieces, true, true, draws),
            Arrive::Trace(speed) => {
                let times =
                    trace.and_then(TraceFile::arrivals).ok_or("the trace does not say when its sessions came")?;
                Self::Trace { times, speed: speed.0 }
            }
        }))
    }

    fn of_pieces(pieces: &[Piece], random: bool, repeat: bool, draws: &Draws) -> Self {
        let mut merged: Vec<Piece> = Vec::new();
        for piece in pieces {
            match merged.last_mut() {
                // A random length of two means is no random length of their sum.
                Some(last) if last.rate == piece.rate && !random => last.time.0 += piece.time.0,
                _ => merged.push(*piece),
            }
        }
        let rate = merged[0].rate.0;
        let one = merged.iter().all(|piece| piece.rate.0 == rate);
        if one && (repeat || merged[0].time.0 == f64::INFINITY) {
            return Self::Poisson { rate };
        }
        let time = if repeat { merged.iter().map(|piece| piece.time.0).sum() } else { 0.0 };
        let area = merged.iter().map(|piece| if piece.rate.0 > 0.0 { piece.rate.0 * piece.time.0 } else { 0.0 }).sum();
        let mut pieces =
            Pieces { pieces: merged, random, repeat, at: 0, end: 0.0, rounds: 0.0, time, area, lengths: 0 };
        pieces.end = pieces.length(draws);
        Self::Pieces(pieces)
    }

    /// When session `number` comes, the one before having come at `last`; `None`: nobody comes any more.
    ///
    /// # Errors
    ///
    /// One sentence: the pieces are too short.
    pub(crate) fn next(&mut self, draws: &Draws, number: u64, last: f64) -> Result<Option<f64>, String> {
        let increment = || exponential(draws, INCREMENTS, number);
        match self {
            Self::Poisson { .. } if number == 0 => Ok(Some(0.0)),
            Self::Poisson { rate } => Ok(Some(last + increment() / *rate)),
            Self::Pieces(pieces) if number == 0 && pieces.pieces[0].rate.0 > 0.0 => Ok(Some(0.0)),
            Self::Pieces(pieces) => pieces.next(draws, last, increment()),
            Self::Trace { times, speed } => Ok(times.get(number as usize).map(|time| time / *speed)),
        }
    }
}

impl Pieces {
    fn next(&mut self, draws: &Draws, last: f64, increment: f64) -> Result<Option<f64>, String> {
        let (mut from, mut left) = (last, increment);
        let mut passed = 0;
        loop {
            let rate = self.pieces[self.at].rate.0;
            // 0 left at a rate of 0 would be nothing known.
            let due = if rate > 0.0 { from + left / rate } else { f64::INFINITY };
            if due <= self.end && due < f64::INFINITY {
                return Ok(Some(due));
            }
            if self.end == f64::INFINITY {
                return Ok(None);
            }
            left = (left - (self.end - from) * rate).max(0.0);
            from = self.end;
            passed += 1;
            if self.random && passed > PIECES_MAX {
                return Err(format!("{PIECES_MAX} pieces of `bursts` went by without an arrival"));
            }
            self.at += 1;
            if self.at == self.pieces.len() {
                if !self.repeat {
                    (self.at, self.end) = (self.at - 1, f64::INFINITY);
                    return Ok(None);
                }
                self.at = 0;
                self.rounds += 1.0;
                if !self.random {
                    // Rounds that go by without an arrival.
                    let whole = (left / self.area).floor();
                    left = (left - whole * self.area).max(0.0);
                    self.rounds += whole;
                    from = self.rounds * self.time;
                }
            }
            self.end = self.end_of_piece(draws, from);
        }
    }

    fn end_of_piece(&mut self, draws: &Draws, from: f64) -> f64 {
        if self.random {
            return from + self.length(draws);
        }
        let begun: f64 = self.pieces[..=self.at].iter().map(|piece| piece.time.0).sum();
        self.rounds * self.time + begun
    }

    fn length(&mut self, draws: &Draws) -> f64 {
        let time = self.pieces[self.at].time.0;
        if !self.random {
            return time;
        }
        self.lengths += 1;
        time * exponential(draws, LENGTHS, self.lengths)
    }
}

fn exponential(draws: &Draws, owner: u64, counter: u64) -> f64 {
    -libm::log(1.0 - draws.uniform(Stream { purpose: Purpose::Arrivals, owner, turn: 0, counter }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::BadRows;

    fn pieces(all: &[(f64, f64)]) -> Vec<Piece> {
        all.iter().map(|&(rate, time)| Piece { rate: rate.into(), time: time.into() }).collect()
    }

    fn steps(all: &[(f64, f64)], repeat: bool) -> Arrive {
        Arrive::Steps { pieces: pieces(all), repeat }
    }

    /// Arrivals before a time.
    fn arrivals(law: &Arrive, seed: u64, until: f64) -> Vec<f64> {
        let draws = Draws::new(seed);
        let mut law = Arrivals::new(law, None, &draws).unwrap().unwrap();
        let mut all: Vec<f64> = Vec::new();
        while let Some(time) = law.next(&draws, all.len() as u64, all.last().map_or(0.0, |last| *last)).unwrap() {
            if time >= until {
                break;
            }
            all.push(time);
        }
        all
    }

    /// How many fall into [k × width, (k + 1) × width).
    fn counts(times: &[f64], width: f64, windows: usize) -> Vec<f64> {
        let mut counts = vec![0.0; windows];
        for time in times {
            if let Some(count) = counts.get_mut((time / width) as usize) {
                *count += 1.0;
            }
        }
        counts
    }

    fn mean(all: &[f64]) -> f64 {
        all.iter().sum::<f64>() / all.len() as f64
    }

    fn variance(all: &[f64]) -> f64 {
        let mean = mean(all);
        all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64
    }

    #[test]
    fn pieces_of_one_rate_are_a_poisson_process_bit_for_bit() {
        let plain = arrivals(&Arrive::Poisson(2.0.into()), 1, 1e4);
        assert_eq!(plain[0], 0.0);
        assert!((plain.len() as f64 - 2e4).abs() < 5.0 * 2e4f64.sqrt());
        assert_eq!(arrivals(&steps(&[(2.0, 7.0), (2.0, 0.1)], true), 1, 1e4), plain);
        assert_eq!(arrivals(&steps(&[(2.0, 7.0), (2.0, 0.1), (2.0, f64::INFINITY)], false), 1, 1e4), plain);
        assert_eq!(arrivals(&Arrive::Bursts { pieces: pieces(&[(2.0, 7.0), (2.0, 0.1)]) }, 1, 1e4), plain);
        assert_ne!(arrivals(&Arrive::Poisson(2.0.into()), 2, 1e4), plain);
    }

    #[test]
    fn the_first_piece_is_the_plain_process_and_the_rest_goes_on_from_what_is_left() {
        let plain = arrivals(&Arrive::Poisson(2.0.into()), 1, 1e3);
        let faster = arrivals(&steps(&[(2.0, 500.0), (8.0, f64::INFINITY)], false), 1, 1e3);
        let before = plain.iter().filter(|time| **time <= 500.0).count();
        assert_eq!(faster[..before], plain[..before]);
        // The same increments at four times the rate.
        for (slow, fast) in plain[before..].iter().zip(&faster[before..]) {
            assert!((500.0 + (slow - 500.0) / 4.0 - fast).abs() < 1e-9, "{slow} and {fast}");
        }
    }

    /// Each piece has rate × time arrivals on average, with the variance of a Poisson law.
    #[test]
    fn a_piece_has_the_arrivals_of_its_rate() {
        let (rounds, round) = (400, 100.0);
        let times = arrivals(&steps(&[(2.0, 60.0), (0.0, 10.0), (8.0, 30.0)], true), 3, rounds as f64 * round);
        let within = |from: f64, to: f64| {
            let piece: Vec<f64> = times.iter().copied().filter(|time| (from..to).contains(&(time % round))).collect();
            counts(&piece, round, rounds)
        };
        for (from, to, expected) in [(0.0, 60.0, 120.0), (70.0, 100.0, 240.0), (0.0, 30.0, 60.0), (70.0, 71.0, 8.0)] {
            let counts = within(from, to);
            let n = counts.len() as f64;
            let (mean, dispersion) = (mean(&counts), variance(&counts) / expected);
            assert!((mean - expected).abs() < 4.0 * (expected / n).sqrt(), "{from} to {to}: {mean}");
            assert!((dispersion - 1.0).abs() < 4.0 * (2.0 / n).sqrt(), "{from} to {to}: {dispersion}");
        }
        assert_eq!(within(60.0, 70.0).iter().sum::<f64>(), 0.0);
    }

    #[test]
    fn a_law_that_does_not_repeat_ends_or_stays() {
        let ended = arrivals(&steps(&[(2.0, 50.0), (1.0, 50.0)], false), 1, f64::INFINITY);
        assert!(*ended.last().unwrap() <= 100.0 && (100..200).contains(&ended.len()), "{}", ended.len());
        let stays = arrivals(&steps(&[(0.0, 50.0), (2.0, f64::INFINITY)], false), 1, 1e4);
        // Nobody at 0, where the rate is 0.
        assert!(stays[0] > 50.0);
        assert!((stays.len() as f64 - 19_900.0).abs() < 5.0 * 19_900f64.sqrt());
    }

    /// Rounds far below the gaps, where adding up their ends would neither end nor be exact.
    #[test]
    fn very_short_rounds_are_their_mean_rate() {
        for time in [1e-3, 1e-9, 1e-300] {
            let times = arrivals(&steps(&[(1.0, time), (3.0, time)], true), 1, 1e4);
            let plain = arrivals(&Arrive::Poisson(2.0.into()), 1, 1e4);
            let apart = plain.iter().zip(&times).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(times.len().abs_diff(plain.len()) <= 1 && apart < 2.0 * time + 1e-6, "{time}: {apart}");
        }
    }

    /// The index of dispersion of a stationary two-state MMPP over a time t,
    ///
    /// 1 + 2 p (1 − p) (a − b)² / (m s) × (1 − (1 − exp(−s t)) / (s t)),
    ///
    /// with rates a and b, mean times 1/u and 1/v, s = u + v, p = v / s the share of a, and the mean rate
    /// m = p a + (1 − p) b. (The covariance of the rate at distance x is p (1 − p) (a − b)² exp(−s x).)
    fn dispersion([(a, time_a), (b, time_b)]: [(f64, f64); 2], t: f64) -> f64 {
        let s = 1.0 / time_a + 1.0 / time_b;
        let p = time_a / (time_a + time_b);
        let m = p * a + (1.0 - p) * b;
        1.0 + 2.0 * p * (1.0 - p) * (a - b).powi(2) / (m * s) * (1.0 - (1.0 - (-s * t).exp()) / (s * t))
    }

    #[test]
    fn bursts_have_the_mean_and_the_dispersion_of_an_mmpp() {
        for (law, seed) in [([(10.0, 1.0), (1.0, 3.0)], 5), ([(20.0, 0.5), (0.0, 2.0)], 6)] {
            let rate = (law[0].0 * law[0].1 + law[1].0 * law[1].1) / (law[0].1 + law[1].1);
            for t in [0.5, 2.0, 20.0] {
                // Batches of windows: the estimate's own error is known.
                let (batches, windows) = (40, 1_000);
                let until = t * (batches * windows) as f64;
                let times = arrivals(&Arrive::Bursts { pieces: pieces(&law) }, seed, until);
                let counts = counts(&times, t, batches * windows);
                let estimates: Vec<f64> = counts.chunks(windows).map(|batch| variance(batch) / (rate * t)).collect();
                let error = (variance(&estimates) / batches as f64).sqrt();
                let expected = dispersion(law, t);
                assert!(error < 0.02 * expected, "{t}: the error is {error}");
                let found = mean(&estimates);
                assert!((found - expected).abs() < 4.0 * error, "{t}: {found} ± {error}, expected {expected}");
                let mean = mean(&counts) / t;
                let error = (rate * expected.max(dispersion(law, 1e9)) / until).sqrt();
                assert!((mean - rate).abs() < 4.0 * error, "{t}: rate {mean} ± {error}");
                // What a mix-up of the two times would give is far away.
                let mixed = dispersion([(law[0].0, law[1].1), (law[1].0, law[0].1)], t);
                assert!((mixed - expected).abs() > 0.1 * expected, "{t}: {mixed} and {expected}");
            }
        }
    }

    #[test]
    fn bursts_too_short_to_bring_anybody_are_refused() {
        let draws = Draws::new(1);
        let law = Arrive::Bursts { pieces: pieces(&[(0.0, 1e-20), (1e-9, 1e-20)]) };
        let mut law = Arrivals::new(&law, None, &draws).unwrap().unwrap();
        let error = law.next(&draws, 0, 0.0).unwrap_err();
        assert_eq!(error, "1000000 pieces of `bursts` went by without an arrival");
    }

    #[test]
    fn a_trace_arrives_at_its_times_and_twice_as_fast_in_half_of_them() {
        let text = "0,1,1,1,0,0,0.1\n1,1,1,1,0,0,0.7\n2,1,1,1,0,0,1e9\n";
        let trace = TraceFile::read(text.as_bytes(), BadRows::Refuse).unwrap();
        let draws = Draws::new(1);
        for (speed, expected) in [(1.0, [0.1, 0.7, 1e9]), (2.0, [0.05, 0.35, 5e8])] {
            let mut law = Arrivals::new(&Arrive::Trace(speed.into()), Some(&trace), &draws).unwrap().unwrap();
            let times: Vec<f64> = (0..3).map(|at| law.next(&draws, at, 0.0).unwrap().unwrap()).collect();
            assert_eq!(times, expected);
            assert_eq!(law.next(&draws, 3, 0.0), Ok(None));
        }
        let untimed = TraceFile::read(&b"0,1,1,1,0"[..], BadRows::Refuse).unwrap();
        for trace in [None, Some(&untimed)] {
            assert!(Arrivals::new(&Arrive::Trace(1.0.into()), trace, &draws).is_err());
        }
    }
}
