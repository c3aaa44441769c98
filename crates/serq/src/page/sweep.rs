//! The page of a sweep: each figure as curves over the first swept constant, and the tables.

use maud::{Markup, PreEscaped, html};
use serq_sim::replicate::Summary;
use serq_sim::sweep::{Cell, Difference};

use super::chart::{Axis, COLOURS, Chart, Curve};
use super::{figure, notes, page, table};
use crate::drawing;
use crate::number::{NOTHING, significant};
use crate::report::over_cells::{self, Report};
use crate::report::over_seeds::range;
use crate::report::span;

/// Curves in one chart: more are too many to tell apart.
const CURVES_MAX: usize = COLOURS.len();

/// Draws.
pub(crate) fn draw(report: &Report<'_>) -> Result<String, String> {
    let values = report.values()?;
    let run = &report.program.run;
    let span = span(run.horizon.0, run.warmup.0);
    let under = format!("{} swept · {span}, {}", axes(report).join(", "), report.seeds.words());
    let many = report.seeds.0.len() > 1;
    let lines = lines(report.cells);
    let names: Vec<String> = lines.iter().map(|(name, _)| name.clone()).collect();
    let sections = html! {
        section {
            h2 { "Over " (axes(report)[0]) }
            p.note {
                @if many { "Dots are medians over the seeds, bands reach from the least to the greatest." }
                @else { "One seed: how sure these are is not known; --seeds 1..20 tells." }
                @if lines.len() > CURVES_MAX { " Only the first " (CURVES_MAX) " of " (lines.len()) " curves are drawn." }
            }
            div.charts {
                @for (column, values) in report.columns.iter().zip(&values) {
                    (chart(over_cells::head(column), report, values, &lines, &names))
                }
            }
        }
        section {
            h2 { "The figures" }
            (figures(report, &values, many))
        }
        (differences(report, &values))
        section {
            h2 { "The deployment" }
            p.note { "Of the first cell, " (over_cells::label(&report.cells[0])) "." }
            div.drawing { (PreEscaped(drawing::draw(report.program))) }
        }
        (notes(&report.notes_of_cells()))
    };
    Ok(page(&report.program.name, &under, sections))
}

fn axes(report: &Report<'_>) -> Vec<String> {
    report.cells[0].iter().map(|(name, _)| name.clone()).collect()
}

/// Cells that differ in the first constant only, in its order: a name, and their places.
fn lines(cells: &[Cell]) -> Vec<(String, Vec<usize>)> {
    let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let name = over_cells::label(&cell[1..]);
        match lines.iter_mut().find(|(other, _)| *other == name) {
            Some((_, places)) => places.push(at),
            None => lines.push((name, vec![at])),
        }
    }
    lines
}

fn chart(
    title: &str,
    report: &Report<'_>,
    values: &[Vec<f64>],
    lines: &[(String, Vec<usize>)],
    names: &[String],
) -> Markup {
    let words: Vec<String> = lines[0].1.iter().map(|&cell| report.cells[cell][0].1.clone()).collect();
    let numbers: Option<Vec<f64>> =
        words.iter().map(|word| word.parse().ok().filter(|number: &f64| number.is_finite())).collect();
    let (axis, places) = match numbers {
        Some(numbers) if numbers.len() > 1 => {
            let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let axis = if low > 0.0 && high > 20.0 * low { Axis::Log(low, high) } else { Axis::Linear(low, high) };
            (axis, numbers)
        }
        _ => {
            let places = (0..words.len()).map(|at| at as f64).collect();
            (Axis::Words(words), places)
        }
    };
    let curves = lines.iter().take(CURVES_MAX).map(|(_, cells)| {
        let mut points: Vec<(f64, Summary)> = places
            .iter()
            .zip(cells)
            .map(|(&x, &cell)| (x, Summary::of(values[cell].iter().copied())))
            .filter(|(_, summary)| summary.count > 0 && summary.median.is_finite())
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wide = points.len() > 1 && points.iter().any(|(_, summary)| summary.max > summary.min);
        Curve {
            points: points.iter().map(|(x, summary)| (*x, summary.median)).collect(),
            band: if wide {
                points.iter().map(|(x, summary)| (*x, summary.min, summary.max)).collect()
            } else {
                vec![]
            },
            dots: true,
        }
    });
    let chart = Chart { x: axis, from_zero: true, top: None, percent: false, curves: curves.collect(), limit: None };
    let names: Vec<&str> =
        names.iter().take(CURVES_MAX).map(|name| &name[..]).filter(|name| !name.is_empty()).collect();
    figure(title, &names, &chart.draw())
}

fn figures(report: &Report<'_>, values: &[Vec<Vec<f64>>], many: bool) -> Markup {
    let axes = axes(report);
    let mut heads: Vec<&str> = axes.iter().map(|axis| &axis[..]).collect();
    for column in report.columns {
        heads.push(over_cells::head(column));
        if many {
            heads.push("range");
        }
    }
    let rows: Vec<Vec<String>> = report
        .cells
        .iter()
        .enumerate()
        .map(|(at, cell)| {
            let mut row: Vec<String> = cell.iter().map(|(_, value)| value.clone()).collect();
            for column in values {
                let summary = Summary::of(column[at].iter().copied());
                row.push(significant(summary.median, 4));
                if many {
                    row.push(range(&summary));
                }
            }
            row
        })
        .collect();
    table(&heads, &rows)
}

fn differences(report: &Report<'_>, values: &[Vec<Vec<f64>>]) -> Markup {
    let Some(baselines) = report.baselines else { return html! {} };
    let axes = axes(report);
    let heads: Vec<&str> =
        axes.iter().map(|axis| &axis[..]).chain(["difference", "95 % interval", "seed by seed"]).collect();
    let rows = |values: &[Vec<f64>]| -> Vec<Vec<String>> {
        let cells = report.cells.iter().zip(baselines).enumerate();
        cells
            .map(|(at, (cell, &baseline))| {
                let mut row: Vec<String> = cell.iter().map(|(_, value)| value.clone()).collect();
                if at == baseline {
                    row.extend([NOTHING.into(), String::new(), String::new()]);
                } else {
                    let [by, interval, verdict, _] = over_cells::words(&Difference::of(&values[at], &values[baseline]));
                    row.extend([by, interval, verdict]);
                }
                row
            })
            .collect()
    };
    html! {
        section {
            h2 { "Against " (over_cells::label(report.baseline)) ", the same seeds" }
            div.beside {
                @for (column, values) in report.columns.iter().zip(values) {
                    div {
                        h3 { (over_cells::head(column)) }
                        (table(&heads, &rows(values)))
                    }
                }
            }
        }
    }
}
