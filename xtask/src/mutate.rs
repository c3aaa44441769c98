//! Changes of a program that must not change what it does.
//!
//! * [`rename`]: every name the program gives is another one.
//! * [`scale`]: the clock runs twice as fast and units of pools are four times smaller.
//!
//! After either, every sample has the same value, every time is the same (twice it), and
//! every figure of the report is the same (by the factor of its unit), bit for bit: all
//! factors are powers of two. Only quantiles of token gaps are compared to their bucket.

pub mod rename;
pub mod scale;

use std::fs;
use std::path::Path;

use serq_ir::Program;
use serq_lang::Settings;

use crate::fingerprint::{Figure, Unit, differences, figures};
use crate::parallel;
use crate::program;

/// Two buckets of the histogram of token gaps.
const BUCKETS: f64 = 0.021;

/// What was tried on one program.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// Names renamed.
    pub renamed: usize,
    /// Names the program gives that are words of the language, and stayed.
    pub kept: Vec<String>,
    /// Pool families, and those of them whose units were scaled.
    pub pools: (usize, usize),
    /// Figures compared, per change.
    pub figures: usize,
}

/// Tries both changes on a program.
///
/// # Errors
///
/// It doesn't load or run, or where a changed one differs.
pub fn try_program(path: &Path, settings: &Settings) -> Result<Tried, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let at = path.to_string_lossy();
    let original = program::link(&at, &text, settings)?;
    let expected = figures(&original, &program::run(&original)?);

    let mut names = rename::Renaming::default();
    let renamed = rename::link(&at, &text, settings, &mut names)?;
    let found = figures(&renamed, &program::run(&renamed)?);
    let translated: Vec<Figure> =
        expected.iter().map(|figure| Figure { of: names.translate(&figure.of).into(), ..figure.clone() }).collect();
    report(&at, "renamed", &differences(&translated, &found))?;

    let (scaled, factors) = scale::scale(&original);
    serq_ir::verify::verify(&scaled).map_err(|e| format!("{at} scaled: {e}"))?;
    let found = figures(&scaled, &program::run(&scaled)?);
    let scaled_up: Vec<Figure> = expected
        .iter()
        .zip(&found)
        .map(|(figure, found)| {
            let value = figure.value * factors.of(figure.unit);
            // The histogram's buckets have edges of their own, so a scaled gap may fall
            // on the other side of one; it is right to two buckets.
            let near = figure.unit == Unit::Bucket && (found.value / value - 1.0).abs() <= BUCKETS;
            Figure { value: if near { found.value } else { value }, ..figure.clone() }
        })
        .collect();
    report(&at, "scaled", &differences(&scaled_up, &found))?;

    Ok(Tried {
        renamed: names.count(),
        kept: names.kept(&original),
        pools: (original.pools.len(), factors.pools_scaled()),
        figures: expected.len(),
    })
}

fn report(path: &str, change: &str, differences: &[String]) -> Result<(), String> {
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("{path} {change} does something else:\n  {}", differences.join("\n  ")))
}

/// Tries both changes on every case.
///
/// # Errors
///
/// All cases that differ.
pub fn cases() -> Result<String, String> {
    let mut paths = program::cases('d')?;
    paths.extend(program::cases('r')?);
    let tried = parallel::map(&paths, |path| try_program(path, &Settings::default()));
    let mut total = Tried::default();
    let mut wrong = Vec::new();
    for outcome in tried {
        match outcome {
            Ok(one) => {
                total.renamed += one.renamed;
                total.pools.0 += one.pools.0;
                total.pools.1 += one.pools.1;
                total.figures += one.figures;
                total.kept.extend(one.kept);
            }
            Err(problem) => wrong.push(problem),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    total.kept.sort();
    total.kept.dedup();
    Ok(format!(
        "{} programs: {} names renamed (kept, as words of the language: {}), time × 2, units × 4 in {} of {} pools; \
         {} figures the same, twice",
        paths.len(),
        total.renamed,
        total.kept.join(" "),
        total.pools.1,
        total.pools.0,
        total.figures,
    ))
}

/// Names a program gives to its parts, as written in the text (`kv` of `D.kv`).
fn given_names(program: &Program) -> impl Iterator<Item = &str> {
    let attributes = program.attributes.iter().skip(serq_ir::BuiltIn::NAMES.len()).map(|a| a.name.as_str());
    let pools = program.pools.iter().map(|p| p.name.as_str());
    let stages = program.stages.iter().map(|s| s.name.as_str());
    let observes = program.observes.iter().map(String::as_str);
    let gauges = program.gauges.iter().map(|g| g.name.as_str());
    let lists = program.lists.iter().map(|list| list.name.as_str());
    let constants = program.constants.iter().map(|c| c.name.as_str()).chain(lists);
    attributes.chain(pools).chain(stages).chain(observes).chain(gauges).chain(constants)
}
