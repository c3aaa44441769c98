//! The two P/D programs beside each other, in the settings of the seed's two tables.
//!
//! The same seed draws the same sessions in both, so their figures are paired by seed and what
//! chance does to both leaves with the difference. A difference has the 95 % interval of its mean
//! over the seeds.

use std::fmt::Write as _;

use serq_lang::Settings;
use serq_sim::replicate::{Figures, Summary};
use serq_sim::sweep::Difference;
use serq_sim::{Options, simulate};

use crate::program::{self, SEED_PROGRAM, root};
use crate::tables::{self, Runs};
use crate::{marks, parallel};

/// The P/D program with engines as vLLM 0.32.0's schedulers run them.
pub const PROGRAM: &str = "examples/pd-disaggregation/vllm_0_32_pull.sq";

/// A column of the table.
#[derive(Clone, Copy, Debug)]
struct Column {
    /// Its head.
    name: &'static str,
    /// The report's figure.
    figure: &'static str,
    /// From the report's unit to the column's.
    scale: f64,
    /// Behind the point.
    digits: usize,
}

const COLUMNS: [Column; 8] = [
    Column { name: "mean TTFT, ms", figure: "observe:ttft", scale: 1e3, digits: 2 },
    Column { name: "p99 TTFT, ms", figure: "observe:ttft.p99", scale: 1e3, digits: 1 },
    Column { name: "mean response, ms", figure: "observe:response", scale: 1e3, digits: 2 },
    Column { name: "lease, ms", figure: "observe:lease", scale: 1e3, digits: 2 },
    Column { name: "remote, %", figure: "observe:remote", scale: 1e2, digits: 2 },
    Column { name: "tokens a prefiller holds", figure: "pool:P.kv.used", scale: 1.0, digits: 0 },
    Column { name: "KV in use of a decoder, %", figure: "gauge:kv_usage_mean", scale: 1e2, digits: 2 },
    Column { name: "preemptions of a decoder", figure: "pool:D.kv.preemptions", scale: 1.0, digits: 1 },
];

/// A figure of both programs and the difference, over the seeds.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Of the seed's program.
    pub first: Summary,
    /// Of the one with vLLM 0.32.0's schedulers.
    pub second: Summary,
    /// Second minus first, seed by seed.
    pub difference: Difference,
}

impl Cell {
    fn of(first: &[f64], second: &[f64]) -> Self {
        Self {
            first: Summary::of(first.iter().copied()),
            second: Summary::of(second.iter().copied()),
            difference: Difference::of(second, first),
        }
    }
}

/// Runs one of the programs; a value a column. A figure the run does not have is NaN.
///
/// # Errors
///
/// The program doesn't load, stops, or has no such figure.
fn run(path: &str, sets: &[(&str, &str)], seed: u64, horizon: f64, warmup: f64) -> Result<Vec<f64>, String> {
    let settings = Settings { seed: Some(seed), horizon: Some(horizon), warmup: Some(warmup), ..program::sets(sets) };
    let program = program::read(&root().join(path), &settings)?;
    let outcome = simulate(&program, None, &Options::default(), &mut |_, _| true).map_err(|e| format!("{e:?}"))?;
    let figures = Figures::from(&outcome.report);
    COLUMNS.iter().map(|column| Ok(figures.mean(&figures.places(column.figure)?) * column.scale)).collect()
}

/// Both programs in some settings, a list of cells a setting, a cell a column.
///
/// # Errors
///
/// A program doesn't load or stops.
pub fn compare(
    settings: &[&[(&str, &str)]],
    seeds: (u64, u64),
    horizon: f64,
    warmup: f64,
) -> Result<Vec<Vec<Cell>>, String> {
    let mut all = Vec::new();
    for &sets in settings {
        for path in [SEED_PROGRAM, PROGRAM] {
            all.extend((seeds.0..=seeds.1).map(|seed| (path, sets, seed)));
        }
    }
    let runs = parallel::map(&all, |&(path, sets, seed)| run(path, sets, seed, horizon, warmup));
    let runs: Vec<Vec<f64>> = runs.into_iter().collect::<Result<_, _>>()?;
    let count = usize::try_from(seeds.1 - seeds.0 + 1).expect("as many seeds as there are runs");
    let column = |runs: &[Vec<f64>], at: usize| runs.iter().map(|run| run[at]).collect::<Vec<f64>>();
    Ok(runs
        .chunks(2 * count)
        .map(|pair| {
            let (first, second) = pair.split_at(count);
            (0..COLUMNS.len()).map(|at| Cell::of(&column(first, at), &column(second, at))).collect()
        })
        .collect())
}

/// Compares the programs in every row of the two tables and answers with a table as Markdown.
///
/// # Errors
///
/// A program doesn't load or stops, or the section can't be written.
pub fn versions(&Runs { seeds, horizon, warmup, write }: &Runs) -> Result<String, String> {
    let rows = tables::settings();
    let settings: Vec<&[(&str, &str)]> = rows.iter().map(|(_, sets)| *sets).collect();
    let compared = compare(&settings, seeds, horizon, warmup)?;
    let mut text = format!(
        "`cargo xtask versions --seeds {}..{} --horizon {horizon} --warmup {warmup}`: means over the seeds of\n\
         [llmd_nixl_pull.sq](../{SEED_PROGRAM}) (seed) and\n\
         [vllm_0_32_pull.sq](../{PROGRAM}) (0.32.0), and the difference\n\
         paired by seed with its 95 % interval; in bold where 0 is not in it.\n\n",
        seeds.0, seeds.1
    );
    let heads: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let _ = writeln!(text, "| | | {} |\n|---|---|{}", heads.join(" | "), "---:|".repeat(COLUMNS.len()));
    for ((name, _), cells) in rows.iter().zip(&compared) {
        let line = |of: &dyn Fn(&Cell, usize) -> String| {
            let cells: Vec<String> = cells.iter().zip(&COLUMNS).map(|(cell, column)| of(cell, column.digits)).collect();
            cells.join(" | ")
        };
        let _ = writeln!(text, "| {name} | seed | {} |", line(&|cell, digits| mean(cell.first, digits)));
        let _ = writeln!(text, "| | 0.32.0 | {} |", line(&|cell, digits| mean(cell.second, digits)));
        let _ = writeln!(text, "| | difference | {} |", line(&|cell, digits| difference(&cell.difference, digits)));
    }
    if write {
        marks::write(MARKS, &format!("\n{text}"))?;
    }
    Ok(text)
}

fn mean(summary: Summary, digits: usize) -> String {
    if summary.count == 0 { "–".into() } else { format!("{:.digits$}", summary.mean) }
}

/// With a digit more than the means have, as the difference is small beside them.
fn difference(difference: &Difference, digits: usize) -> String {
    let Summary { count, mean, ci, .. } = difference.summary;
    let digits = digits + 1;
    if count == 0 {
        return "–".into();
    }
    if difference.lower == 0 && difference.higher == 0 {
        return "0".into();
    }
    let half_a_unit = 0.5 * 0.1f64.powi(digits as i32);
    if mean.abs() < half_a_unit && ci < half_a_unit {
        return "≈ 0".into();
    }
    let text = format!("{mean:+.digits$} ±{ci:.digits$}").replace('-', "−");
    if mean.abs() > ci { format!("**{text}**") } else { text }
}

/// Where the table begins and ends in docs/validation.md.
const MARKS: (&str, &str) = ("<!-- versions: begin -->", "<!-- versions: end -->");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_with_its_interval() {
        let told = |first: &[f64], second: &[f64]| difference(&Cell::of(first, second).difference, 1);
        // Differences 1, 2, 3: mean 2, Student's t of two 4.303, of a standard error of 1/√3.
        assert_eq!(told(&[10.0, 20.0, 30.0], &[9.0, 18.0, 27.0]), "−2.00 ±2.48");
        assert_eq!(told(&[10.0, 20.0], &[11.0, 21.25]), "+1.12 ±1.59");
        assert_eq!(told(&[10.0, 20.0, 30.0], &[12.0, 22.0, 32.5]), "**+2.17 ±0.72**");
        assert_eq!(told(&[10.0, 20.0], &[10.0, 20.0]), "0");
        assert_eq!(told(&[10.0, 20.0], &[10.0001, 19.9999]), "≈ 0");
        assert_eq!(told(&[f64::NAN], &[f64::NAN]), "–");
    }

    /// The tables sum up the same runs by another way; and both programs ask the same decider.
    #[test]
    fn the_first_program_is_the_tables_and_the_second_has_its_sessions() {
        let (sets, seeds, horizon, warmup): (&[(&str, &str)], _, _, _) = (&[("thr", "1")], (3, 4), 30.0, 5.0);
        let cells = compare(&[sets], seeds, horizon, warmup).unwrap().remove(0);
        let cell = |name: &str| cells[COLUMNS.iter().position(|column| column.name == name).unwrap()];
        let runs = [3, 4].map(|seed| tables::run(&tables::load(sets, seed, horizon, warmup).unwrap()).unwrap());
        let mean = |of: fn(&tables::Figures) -> f64| (of(&runs[0]) + of(&runs[1])) / 2.0;
        assert_eq!(cell("mean TTFT, ms").first.mean, mean(|run| run.ttft));
        assert_eq!(cell("lease, ms").first.mean, mean(|run| run.lease));
        assert_eq!(cell("tokens a prefiller holds").first.mean, mean(|run| run.memory));
        assert_eq!(cell("remote, %").second.mean, 100.0);
        // The notice takes a millisecond, and everything else is as it was in so short a run.
        assert!((cell("lease, ms").difference.summary.mean - 1.0).abs() < 1e-9);
        assert_eq!(cell("mean TTFT, ms").difference.verdict(), serq_sim::sweep::Verdict::Equal);
    }

    /// Preemptions by 0.32.0's rules come to the same; seats in the order of parking don't.
    #[test]
    fn without_the_notice_the_programs_part_only_where_seats_are_few() {
        let both = |sets: &[(&str, &str)]| {
            let second = [sets, &[("notice", "0")]].concat();
            (run(SEED_PROGRAM, sets, 1, 60.0, 5.0).unwrap(), run(PROGRAM, &second, 1, 60.0, 5.0).unwrap())
        };
        let (first, second) = both(&[("blocksD", "1100"), ("Lambda", "3")]);
        assert!(*first.last().unwrap() > 0.0, "somebody is preempted");
        assert_eq!(first, second);
        let (first, second) = both(&[("max_seqsD", "2"), ("Lambda", "3")]);
        assert_ne!(first, second);
    }
}
