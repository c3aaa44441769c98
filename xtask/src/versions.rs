//! The two P/D programs beside each other, in the settings of the seed's two tables, the newer one with
//! synchronous and with asynchronous scheduling.
//!
//! The same seed draws the same sessions in all, so their figures are paired by seed and what
//! chance does to all leaves with the difference. A difference has the 95 % interval of its mean
//! over the seeds.

use std::fmt::Write as _;
use std::fs;

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

/// What is compared.
#[derive(Clone, Copy, Debug)]
struct Variant {
    /// In the table.
    name: &'static str,
    path: &'static str,
    sets: &'static [(&'static str, &'static str)],
    /// A line of its text, and what follows it here.
    behind: Option<(&'static str, &'static str)>,
}

impl Variant {
    const fn new(name: &'static str, path: &'static str, sets: &'static [(&'static str, &'static str)]) -> Self {
        Self { name, path, sets, behind: None }
    }
}

const VERSIONS: [Variant; 3] = [
    Variant::new("seed", SEED_PROGRAM, &[]),
    Variant::new("0.32.0, synchronous", PROGRAM, &[("pipelined", "0")]),
    Variant::new("0.32.0, asynchronous", PROGRAM, &[("pipelined", "1")]),
];

/// A read is over when a step that begins after it has ended.
const HEARD_WITH_A_STEP: Option<(&str, &str)> =
    Some(("          release src after (notice);\n", "          decode (1);\n"));

/// What vLLM does and the program leaves out, in rough: the first is the program as it is.
const LEFT_OUT: [Variant; 3] = [
    Variant::new("as it is", PROGRAM, &[]),
    Variant { behind: HEARD_WITH_A_STEP, ..Variant::new("read ends are heard of with a step", PROGRAM, &[]) },
    Variant { behind: HEARD_WITH_A_STEP, ..Variant::new("… and notices take 100 ms", PROGRAM, &[("notice", "0.1")]) },
];

/// Settings in which that is told: those of the tables in which nobody is preempted, with an ordinary
/// threshold.
const LEFT_OUT_IN: [&str; 2] = ["thr 512, 0.6/s", "160 000, 1.2/s"];

/// A figure of all variants, over the seeds.
#[derive(Clone, Debug)]
pub struct Cell {
    /// By variant.
    pub means: Vec<Summary>,
    /// From each variant to the next, seed by seed.
    pub differences: Vec<Difference>,
}

impl Cell {
    /// Of the values of each variant.
    fn of(variants: &[Vec<f64>]) -> Self {
        Self {
            means: variants.iter().map(|values| Summary::of(values.iter().copied())).collect(),
            differences: variants.windows(2).map(|pair| Difference::of(&pair[1], &pair[0])).collect(),
        }
    }
}

/// Runs a variant; a value a column. A figure the run does not have is NaN.
///
/// # Errors
///
/// The program doesn't load, stops, has no such figure, or no such line.
fn run(variant: Variant, sets: &[(&str, &str)], seed: u64, horizon: f64, warmup: f64) -> Result<Vec<f64>, String> {
    let sets = program::sets(&[sets, variant.sets].concat());
    let settings = Settings { seed: Some(seed), horizon: Some(horizon), warmup: Some(warmup), ..sets };
    let path = root().join(variant.path);
    let mut text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if let Some((line, more)) = variant.behind {
        let at = text.find(line).ok_or_else(|| format!("{} has no line `{}`", variant.path, line.trim()))?;
        text.insert_str(at + line.len(), more);
    }
    let program = program::link(&path.to_string_lossy(), &text, &settings)?;
    let outcome = simulate(&program, None, &Options::default(), &mut |_, _| true).map_err(|e| format!("{e:?}"))?;
    let figures = Figures::from(&outcome.report);
    COLUMNS.iter().map(|column| Ok(figures.mean(&figures.places(column.figure)?) * column.scale)).collect()
}

/// All variants in some settings, a list of cells a setting, a cell a column.
///
/// # Errors
///
/// A program doesn't load or stops.
fn compare(
    variants: &[Variant],
    settings: &[&[(&str, &str)]],
    seeds: (u64, u64),
    horizon: f64,
    warmup: f64,
) -> Result<Vec<Vec<Cell>>, String> {
    let mut all = Vec::new();
    for &sets in settings {
        for &variant in variants {
            all.extend((seeds.0..=seeds.1).map(|seed| (variant, sets, seed)));
        }
    }
    let runs = parallel::map(&all, |&(variant, sets, seed)| run(variant, sets, seed, horizon, warmup));
    let runs: Vec<Vec<f64>> = runs.into_iter().collect::<Result<_, _>>()?;
    let count = usize::try_from(seeds.1 - seeds.0 + 1).expect("as many seeds as there are runs");
    let cell = |runs: &[Vec<f64>], at: usize| {
        let column = |runs: &[Vec<f64>]| runs.iter().map(|run| run[at]).collect();
        Cell::of(&runs.chunks(count).map(column).collect::<Vec<Vec<f64>>>())
    };
    Ok(runs.chunks(variants.len() * count).map(|runs| (0..COLUMNS.len()).map(|at| cell(runs, at)).collect()).collect())
}

/// Variants in rows of the tables, as a table in Markdown.
fn table(variants: &[Variant], rows: &[tables::Setting], runs: &Runs) -> Result<String, String> {
    let settings: Vec<&[(&str, &str)]> = rows.iter().map(|(_, sets)| *sets).collect();
    let compared = compare(variants, &settings, runs.seeds, runs.horizon, runs.warmup)?;
    let heads: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let mut text = format!("| | | {} |\n|---|---|{}\n", heads.join(" | "), "---:|".repeat(COLUMNS.len()));
    for ((name, _), cells) in rows.iter().zip(&compared) {
        let line = |of: &dyn Fn(&Cell, usize) -> String| {
            let cells: Vec<String> = cells.iter().zip(&COLUMNS).map(|(cell, column)| of(cell, column.digits)).collect();
            cells.join(" | ")
        };
        for (at, variant) in variants.iter().enumerate() {
            let row = if at == 0 { format!("{name} ") } else { String::new() };
            let _ =
                writeln!(text, "| {row}| {} | {} |", variant.name, line(&|cell, digits| mean(cell.means[at], digits)));
            if at > 0 {
                let told = line(&|cell, digits| difference(&cell.differences[at - 1], digits));
                let _ = writeln!(text, "| | difference | {told} |");
            }
        }
    }
    Ok(text)
}

/// Compares the programs in every row of the two tables, and the newer one with what it leaves out, and
/// answers with two tables as Markdown.
///
/// # Errors
///
/// A program doesn't load or stops, or a section can't be written.
pub fn versions(runs: &Runs) -> Result<String, String> {
    let Runs { seeds, horizon, warmup, write } = *runs;
    let rows = tables::settings();
    let command =
        format!("`cargo xtask versions --seeds {}..{} --horizon {horizon} --warmup {warmup}`", seeds.0, seeds.1);
    let versions = format!(
        "{command}: means over the seeds of\n\
         [llmd_nixl_pull.sq](../{SEED_PROGRAM}) (seed) and\n\
         [vllm_0_32_pull.sq](../{PROGRAM}) (0.32.0), and the differences\n\
         to what stands above, paired by seed, with their 95 % intervals; in bold where 0 is not in it.\n\n{}",
        table(&VERSIONS, &rows, runs)?
    );
    let rows: Vec<_> = rows.into_iter().filter(|(name, _)| LEFT_OUT_IN.contains(&name.as_str())).collect();
    let left_out = format!("{command}, as above:\n\n{}", table(&LEFT_OUT, &rows, runs)?);
    if write {
        marks::write(VERSIONS_MARKS, &format!("\n{versions}"))?;
        marks::write(LEFT_OUT_MARKS, &format!("\n{left_out}"))?;
    }
    Ok(format!("{versions}\n{left_out}"))
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
    let mut text = format!("{mean:+.digits$}").replace('-', "−");
    if count == 1 {
        return text;
    }
    let _ = write!(text, " ±{ci:.digits$}");
    if mean.abs() > ci { format!("**{text}**") } else { text }
}

/// Where the tables begin and end in docs/validation.md.
const VERSIONS_MARKS: (&str, &str) = ("<!-- versions: begin -->", "<!-- versions: end -->");
const LEFT_OUT_MARKS: (&str, &str) = ("<!-- left out: begin -->", "<!-- left out: end -->");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_with_its_interval() {
        let told = |first: &[f64], second: &[f64]| difference(&Difference::of(second, first), 1);
        // Differences 1, 2, 3: mean 2, Student's t of two 4.303, of a standard error of 1/√3.
        assert_eq!(told(&[10.0, 20.0, 30.0], &[9.0, 18.0, 27.0]), "−2.00 ±2.48");
        assert_eq!(told(&[10.0, 20.0], &[11.0, 21.25]), "+1.12 ±1.59");
        assert_eq!(told(&[10.0, 20.0, 30.0], &[12.0, 22.0, 32.5]), "**+2.17 ±0.72**");
        assert_eq!(told(&[10.0, 20.0], &[10.0, 20.0]), "0");
        assert_eq!(told(&[10.0, 20.0], &[10.0001, 19.9999]), "≈ 0");
        assert_eq!(told(&[10.0], &[11.0]), "+1.00", "one seed has no interval");
        assert_eq!(told(&[f64::NAN], &[f64::NAN]), "–");
    }

    /// The tables sum up the same runs by another way; and both programs ask the same decider.
    #[test]
    fn the_first_program_is_the_tables_and_the_second_has_its_sessions() {
        let (sets, seeds, horizon, warmup): (&[(&str, &str)], _, _, _) = (&[("thr", "1")], (3, 4), 30.0, 5.0);
        let cells = compare(&VERSIONS, &[sets], seeds, horizon, warmup).unwrap().remove(0);
        let cell = |name: &str| &cells[COLUMNS.iter().position(|column| column.name == name).unwrap()];
        let runs = [3, 4].map(|seed| tables::run(&tables::load(sets, seed, horizon, warmup).unwrap()).unwrap());
        let mean = |of: fn(&tables::Figures) -> f64| (of(&runs[0]) + of(&runs[1])) / 2.0;
        assert_eq!(cell("mean TTFT, ms").means[0].mean, mean(|run| run.ttft));
        assert_eq!(cell("lease, ms").means[0].mean, mean(|run| run.lease));
        assert_eq!(cell("tokens a prefiller holds").means[0].mean, mean(|run| run.memory));
        assert_eq!(cell("remote, %").means[1].mean, 100.0);
        // The notice takes a millisecond, and everything else is as it was in so short a run.
        assert!((cell("lease, ms").differences[0].summary.mean - 1.0).abs() < 1e-9);
        assert_eq!(cell("mean TTFT, ms").differences[0].verdict(), serq_sim::sweep::Verdict::Equal);
    }

    /// The rows are there, and the program has the line that more is put behind.
    #[test]
    fn what_is_left_out_can_be_run() {
        let rows = tables::settings();
        assert!(LEFT_OUT_IN.iter().all(|name| rows.iter().any(|(row, _)| row == name)));
        let ran = LEFT_OUT.map(|variant| run(variant, &[], 1, 30.0, 5.0).unwrap());
        let column = |name: &str| COLUMNS.iter().position(|column| column.name == name).unwrap();
        let [ttft, lease] = ["mean TTFT, ms", "lease, ms"].map(column);
        assert!(ran[1][ttft] > ran[0][ttft], "{ran:?}");
        assert!(ran[2][lease] > ran[1][lease] + 90.0, "{ran:?}");
    }

    /// Preemptions by 0.32.0's rules come to the same; seats in the order of parking don't.
    #[test]
    fn without_the_notice_the_programs_part_only_where_seats_are_few() {
        let both = |sets: &[(&str, &str)]| {
            let second = [sets, &[("notice", "0")]].concat();
            (run(VERSIONS[0], sets, 1, 60.0, 5.0).unwrap(), run(VERSIONS[1], &second, 1, 60.0, 5.0).unwrap())
        };
        let (first, second) = both(&[("blocksD", "1100"), ("Lambda", "3")]);
        assert!(*first.last().unwrap() > 0.0, "somebody is preempted");
        assert_eq!(first, second);
        let (first, second) = both(&[("max_seqsD", "2"), ("Lambda", "3")]);
        assert_ne!(first, second);
    }
}
