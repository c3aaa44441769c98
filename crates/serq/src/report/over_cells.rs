//! A sweep's table: what each setting gives, and what differs from the baseline.

use serde::{Serialize, Serializer};
use serq_ir::Program;
use serq_lang::nearest::nearest;
use serq_sim::replicate::{FigureName, Figures, Part, Summary};
use serq_sim::report::REPORT_SCHEMA;
use serq_sim::sweep::{Cell, Difference};

use super::lines::{Csv, cell as csv_number};
use super::over_seeds::{JsonSummary, SeedNote, range, seed_notes};
use super::span;
use super::text::wrapped;
use crate::number::{NOTHING, signed, significant};
use crate::seeds::Seeds;
use crate::table::Columns;

/// Notes shown under a table; the files have all.
const NOTES_SHOWN: usize = 5;

/// The runs and what they were of.
pub(crate) struct Report<'a> {
    /// The program of the first cell.
    pub(crate) program: &'a Program,
    /// Settings, in the grid's order.
    pub(crate) cells: &'a [Cell],
    /// Per cell, per seed.
    pub(crate) runs: &'a [Vec<Figures>],
    /// Of every cell.
    pub(crate) seeds: &'a Seeds,
    /// Figures shown.
    pub(crate) columns: &'a [String],
    /// As given.
    pub(crate) baseline: &'a [(String, String)],
    /// Per cell, the cell it is compared with.
    pub(crate) baselines: Option<&'a [usize]>,
}

/// `thr=1 Lambda=0.6`.
pub(crate) fn label(cell: &[(String, String)]) -> String {
    let parts: Vec<String> = cell.iter().map(|(name, value)| format!("{name}={value}")).collect();
    parts.join(" ")
}

/// How a figure may be named in a column, for finding the nearest.
pub(crate) fn spellings(name: &FigureName) -> Vec<String> {
    match name.part {
        Part::Run => vec![name.figure.clone()],
        Part::Ttft if name.figure == "mean" => vec![format!("ttft.{}", name.name)],
        Part::Ttft => vec![format!("ttft.{}.{}", name.name, name.figure)],
        Part::Observe | Part::Gauge if name.figure == "mean" => vec![name.name.clone()],
        _ => vec![format!("{}.{}", name.name, name.figure), format!("{}.{}", name.owner(), name.figure)],
    }
}

/// A column without its prefix.
pub(crate) fn head(column: &str) -> &str {
    column.strip_prefix("observe:").unwrap_or(column)
}

/// The difference, its interval, what it shows, and its range over the seeds.
pub(crate) fn words(difference: &Difference) -> [String; 4] {
    let s = difference.summary;
    let ends = |low: f64, high: f64| format!("{} … {}", signed(low, 3), signed(high, 3));
    let interval = if s.ci.is_finite() { format!("({})", ends(s.mean - s.ci, s.mean + s.ci)) } else { String::new() };
    let range = if s.count > 1 { ends(s.min, s.max) } else { String::new() };
    [signed(s.mean, 3), interval, difference.words(), range]
}

/// What the first noted run of one setting says, and how many more are noted.
///
/// Numbers in a note differ from seed to seed; the first is enough for a person.
pub(crate) fn note(label: &str, runs: &[Figures], seeds: &Seeds) -> Option<String> {
    let noted = runs.iter().filter(|run| !run.notes.is_empty()).count();
    let (run, seed) = runs.iter().zip(&seeds.0).find(|(run, _)| !run.notes.is_empty())?;
    let more = if noted > 1 { format!(", and notes in {} more", noted - 1) } else { String::new() };
    Some(format!("{label}: {} (seed {seed}{more})", run.notes.join("; ")))
}

/// One sentence for a column no figure of a run is called by, with the nearest that is.
pub(crate) fn unknown(what: &str, column: &str, names: &[FigureName]) -> String {
    let known: Vec<String> = names.iter().flat_map(spellings).collect();
    match nearest(column, known.iter().map(String::as_str)) {
        _ if what.contains("several") => what.to_owned(),
        Some(near) => format!("{what}: is it `{near}`?"),
        None => format!("{what}; `serq run` with --csv lists them"),
    }
}

impl Report<'_> {
    /// Per column, per cell, per seed.
    pub(crate) fn values(&self) -> Result<Vec<Vec<Vec<f64>>>, String> {
        let cell_values = |column: &str, cell: usize| {
            let runs = &self.runs[cell];
            let places = runs[0]
                .places(column)
                .map_err(|what| format!("--show: {what} in the cell {}", label(&self.cells[cell])))?;
            Ok(runs.iter().map(|run| run.mean(&places)).collect())
        };
        let column_values = |column: &String| {
            (0..self.cells.len()).map(|cell| cell_values(column, cell)).collect::<Result<_, String>>()
        };
        self.columns.iter().map(column_values).collect()
    }

    /// For a person.
    pub(crate) fn text(&self, width: usize) -> Result<String, String> {
        let values = self.values()?;
        let run = &self.program.run;
        let many = self.seeds.0.len() > 1;
        let what = if many { "\nmedian and range over the seeds" } else { "" };
        let mut parts = vec![format!(
            "{}   {}, {}{what}\n",
            self.program.name,
            span(run.horizon.0, run.warmup.0),
            self.seeds.words()
        )];

        let axes: Vec<String> = self.cells[0].iter().map(|(name, _)| name.clone()).collect();
        let mut heads = axes.clone();
        for column in self.columns {
            heads.push(head(column).to_owned());
            if many {
                heads.push("range".into());
            }
        }
        let mut table = Columns::new(axes.len(), heads);
        for at in 0..self.columns.len() {
            if many {
                let range = axes.len() + 2 * at + 1;
                table = table.left(range).beside(range);
            }
        }
        for cell in 0..self.cells.len() {
            let mut row: Vec<String> = self.cells[cell].iter().map(|(_, value)| value.clone()).collect();
            for column in &values {
                let summary = Summary::of(column[cell].iter().copied());
                row.push(significant(summary.median, 4));
                if many {
                    row.push(range(&summary));
                }
            }
            table.row(row);
        }
        parts.push(table.draw(width));

        if let Some(baselines) = self.baselines {
            for (column, values) in self.columns.iter().zip(&values) {
                parts.push(self.differences(head(column), values, baselines, &axes, width));
            }
        }
        parts.push(self.notes(width));
        parts.retain(|part| !part.is_empty());
        Ok(parts.join("\n"))
    }

    fn differences(
        &self,
        column: &str,
        values: &[Vec<f64>],
        baselines: &[usize],
        axes: &[String],
        width: usize,
    ) -> String {
        let own = ["difference", "95 % interval", "seed by seed", "range"].map(String::from);
        let mut table = Columns::new(axes.len(), axes.iter().cloned().chain(own)).if_it_fits(axes.len() + 3);
        for at in 1..4 {
            table = table.left(axes.len() + at);
        }
        for (cell, &baseline) in baselines.iter().enumerate() {
            let mut row: Vec<String> = self.cells[cell].iter().map(|(_, value)| value.clone()).collect();
            if cell == baseline {
                row.extend([NOTHING, "", "", ""].map(String::from));
            } else if values[cell].iter().zip(&values[baseline]).all(|(a, b)| a.is_nan() || b.is_nan()) {
                row.extend([NOTHING, "", "no such figure", ""].map(String::from));
            } else {
                row.extend(words(&Difference::of(&values[cell], &values[baseline])));
            }
            table.row(row);
        }
        format!("{column} against {}\n{}", label(self.baseline), table.draw(width))
    }

    /// One for every cell that has notes.
    pub(crate) fn notes_of_cells(&self) -> Vec<String> {
        let of_cell = |(cell, runs): (&Cell, &Vec<Figures>)| note(&label(cell), runs, self.seeds);
        self.cells.iter().zip(self.runs).filter_map(of_cell).collect()
    }

    fn notes(&self, width: usize) -> String {
        let notes = self.notes_of_cells();
        let more = notes.len().saturating_sub(NOTES_SHOWN);
        let mut text: String = notes.iter().take(NOTES_SHOWN).map(|note| wrapped("note: ", note, width)).collect();
        if more > 0 {
            text += &format!("note: {more} more cells have notes; --json has all\n");
        }
        text
    }

    /// For a spreadsheet: a row for every cell and figure.
    pub(crate) fn csv(&self) -> Result<String, String> {
        let values = self.values()?;
        let mut heads: Vec<&str> = self.cells[0].iter().map(|(name, _)| &name[..]).collect();
        heads.extend(["figure", "seeds", "median", "min", "max", "mean", "ci"]);
        if self.baselines.is_some() {
            heads.extend(["diff_seeds", "diff_mean", "diff_ci", "diff_min", "diff_max", "lower", "higher"]);
        }
        let mut table = Csv::new(&heads);
        for (at, cell) in self.cells.iter().enumerate() {
            for (column, values) in self.columns.iter().zip(&values) {
                let s = Summary::of(values[at].iter().copied());
                let mut row: Vec<String> = cell.iter().map(|(_, value)| value.clone()).collect();
                row.extend([head(column).to_owned(), s.count.to_string()]);
                row.extend([s.median, s.min, s.max, s.mean, s.ci].map(csv_number));
                if let Some(baselines) = self.baselines {
                    let Difference { summary: s, lower, higher } = Difference::of(&values[at], &values[baselines[at]]);
                    row.push(s.count.to_string());
                    row.extend([s.mean, s.ci, s.min, s.max].map(csv_number));
                    row.extend([lower.to_string(), higher.to_string()]);
                }
                table.row(row);
            }
        }
        Ok(table.text())
    }

    /// For a program.
    pub(crate) fn json(&self) -> Result<String, String> {
        let values = self.values()?;
        let cell = |at: usize| {
            let figures = self
                .columns
                .iter()
                .zip(&values)
                .map(|(column, values)| {
                    let against = self
                        .baselines
                        .filter(|baselines| baselines[at] != at)
                        .map(|baselines| (&Difference::of(&values[at], &values[baselines[at]])).into());
                    (head(column), JsonFigure { values: (&values[at][..]).into(), against })
                })
                .collect();
            let notes = seed_notes(&self.runs[at], &self.seeds.0);
            JsonCell { set: Pairs(pairs(&self.cells[at])), figures: Pairs(figures), notes }
        };
        let json = Json {
            schema: REPORT_SCHEMA,
            serq_version: env!("CARGO_PKG_VERSION"),
            program: &self.program.name,
            horizon: self.program.run.horizon.0,
            warmup: self.program.run.warmup.0,
            seeds: &self.seeds.0,
            baseline: (!self.baseline.is_empty()).then(|| Pairs(pairs(self.baseline))),
            cells: (0..self.cells.len()).map(cell).collect(),
        };
        Ok(serde_json::to_string_pretty(&json).expect("names and numbers") + "\n")
    }
}

/// Settings in the order given.
pub(crate) fn pairs(bindings: &[(String, String)]) -> Vec<(&str, &str)> {
    bindings.iter().map(|(name, value)| (&name[..], &value[..])).collect()
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    serq_version: &'static str,
    program: &'a str,
    horizon: f64,
    warmup: f64,
    seeds: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Pairs<'a, &'a str>>,
    cells: Vec<JsonCell<'a>>,
}

#[derive(Serialize)]
struct JsonCell<'a> {
    set: Pairs<'a, &'a str>,
    figures: Pairs<'a, JsonFigure>,
    notes: Vec<SeedNote<'a>>,
}

#[derive(Serialize)]
struct JsonFigure {
    #[serde(flatten)]
    values: JsonValues,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<JsonDifference>,
}

/// One figure over the seeds, and in each.
#[derive(Serialize)]
pub(crate) struct JsonValues {
    #[serde(flatten)]
    summary: JsonSummary,
    per_seed: Vec<Option<f64>>,
}

impl From<&[f64]> for JsonValues {
    fn from(values: &[f64]) -> Self {
        Self {
            summary: (&Summary::of(values.iter().copied())).into(),
            per_seed: values.iter().map(|&value| value.is_finite().then_some(value)).collect(),
        }
    }
}

/// A difference paired by seed.
#[derive(Serialize)]
pub(crate) struct JsonDifference {
    #[serde(flatten)]
    summary: JsonSummary,
    lower: usize,
    higher: usize,
    verdict: String,
}

impl From<&Difference> for JsonDifference {
    fn from(difference: &Difference) -> Self {
        Self {
            summary: (&difference.summary).into(),
            lower: difference.lower,
            higher: difference.higher,
            verdict: difference.words(),
        }
    }
}

/// An object in the order given.
pub(crate) struct Pairs<'a, T>(pub(crate) Vec<(&'a str, T)>);

impl<T: Serialize> Serialize for Pairs<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
