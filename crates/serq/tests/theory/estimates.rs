//! The running estimates of a stage against averages computed here.
//!
//! `estimates.sq` has no chance in it, so the starts and ends of its jobs follow from
//! Lindley's recursion, and the estimates an arrival reads from the starts and ends before
//! it. The first sessions are done by hand in the program's header.

use serq_lang::Settings;
use serq_sim::{Options, simulate};

use super::experiment::{program, text};

/// Weight of a new value.
const WEIGHT: f64 = 0.01;

/// An average begun with its first value; `None` before it.
fn average(values: impl IntoIterator<Item = f64>, weight: f64) -> Option<f64> {
    values
        .into_iter()
        .fold(None, |mean: Option<f64>, value| Some(mean.map_or(value, |mean| mean + weight * (value - mean))))
}

/// λ, ρ, wait and the price of 0.5 more after 1, as session k reads them on arrival.
fn expected(sessions: usize, weight: f64) -> Vec<[f64; 4]> {
    struct Job {
        joined: f64,
        start: f64,
        end: f64,
    }
    let mut jobs: Vec<Job> = Vec::new();
    for k in 0..sessions {
        let joined = (k + 1) as f64;
        let start = jobs.last().map_or(joined, |before| before.end.max(joined));
        let service = if k % 5 == 0 { 2.3 } else { 0.6 };
        jobs.push(Job { joined, start, end: start + service });
    }
    let read = |k: usize| {
        let now = jobs[k].joined;
        let ended: Vec<&Job> = jobs[..k].iter().filter(|job| job.end < now).collect();
        let gap = average(ended.windows(2).map(|pair| pair[1].start - pair[0].start), weight);
        let wait = average(ended.iter().map(|job| job.start - job.joined), weight).unwrap_or(0.0);
        let service = average(ended.iter().map(|job| job.end - job.start), weight).unwrap_or(0.0);
        let lam = gap.map_or(0.0, |gap| 1.0 / gap);
        let rho = (lam * service).min(0.99);
        // The price of d more after h: d itself, what it adds to the work found by those who
        // come meanwhile, and to their waits.
        let (h, d) = (1.0, 0.5);
        let price = d + lam * ((h + d) * (h + d) - h * h) / (2.0 * (1.0 - rho)) + lam * wait * d / (1.0 - rho);
        [lam, rho, wait, price]
    };
    (0..sessions).map(read).collect()
}

/// The largest difference, relative to the value or 1.
fn worst(ours: &[Vec<f64>], expected: &[[f64; 4]]) -> f64 {
    let pairs = expected.iter().enumerate().flat_map(|(k, row)| (0..4).map(move |column| (k, column, row[column])));
    pairs.map(|(k, column, value)| (ours[column][k] - value).abs() / value.abs().max(1.0)).fold(0.0, f64::max)
}

#[test]
fn running_estimates_are_their_averages() {
    let program = program("estimates", &text("estimates"), &Settings::default());
    let options = Options { record: true, ..Options::default() };
    let outcome = simulate(&program, None, &options, &mut |_, _| true).expect("the program runs");
    let ours: Vec<Vec<f64>> =
        outcome.samples.iter().map(|samples| samples.iter().map(|sample| sample.value).collect()).collect();
    let sessions = ours[0].len();
    assert_eq!(sessions, 400);

    // Session 3, by hand in the program's header.
    for (column, by_hand) in [0.434783, 0.99, 0.013, 27.956522].into_iter().enumerate() {
        assert!((ours[column][3] - by_hand).abs() < 1e-6, "column {column}: {} not {by_hand}", ours[column][3]);
    }
    let off = worst(&ours, &expected(sessions, WEIGHT));
    println!(
        "| estimates | 4 figures of {sessions} sessions | EWMA of weight {WEIGHT} | differ by {off:.1e} at most |"
    );
    assert!(off < 1e-9, "estimates differ by {off}");
    // The twin: a weight 5 % larger is seen.
    assert!(worst(&ours, &expected(sessions, 1.05 * WEIGHT)) > 1e-3);
}
