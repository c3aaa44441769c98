//! Two programs over the same seeds: what each gives, and the difference seed by seed.

use serde::Serialize;
use serq_ir::Program;
use serq_sim::replicate::{Figures, Part, Summary};
use serq_sim::report::REPORT_SCHEMA;
use serq_sim::sweep::{Difference, Verdict};

use super::over_cells::{JsonDifference, JsonValues, Pairs, head, label, note, pairs, words};
use super::over_seeds::{SeedNote, seed_notes};
use super::span;
use super::text::wrapped;
use crate::number::significant;
use crate::seeds::Seeds;
use crate::table::Columns;

/// The runs and what they were of.
pub(crate) struct Report<'a> {
    /// A, then B.
    pub(crate) sides: [Side<'a>; 2],
    /// Of both.
    pub(crate) seeds: &'a Seeds,
    /// What is compared.
    pub(crate) figures: Shared,
}

/// One program.
pub(crate) struct Side<'a> {
    /// `A` or `B`.
    pub(crate) letter: &'static str,
    /// As given.
    pub(crate) file: &'a str,
    /// What is set for this one alone.
    pub(crate) set: &'a [(String, String)],
    /// As linked.
    pub(crate) program: &'a Program,
    /// One a seed.
    pub(crate) runs: &'a [Figures],
}

/// Columns both have, and those that only one has.
pub(crate) struct Shared {
    /// Under a heading each.
    tables: Vec<(&'static str, Vec<String>)>,
    /// A's own, then B's own.
    only: [Vec<String>; 2],
}

impl Shared {
    /// Of what the two programs' runs have: what is asked for, or what both observe.
    pub(crate) fn of(a: &Figures, b: &Figures, show: &[String]) -> Self {
        let wanted = |figures: &Figures| match show {
            [] => usual(figures),
            _ => show.iter().map(|column| ("figure", column.clone())).collect(),
        };
        let has = |figures: &Figures, column: &str| figures.places(column).is_ok();
        let own = |figures: &Figures, other: &Figures| {
            let own = |(_, column): &(&str, String)| has(figures, column) && !has(other, column);
            wanted(figures).into_iter().filter(own).map(|(_, column)| column).collect()
        };
        let mut tables: Vec<(&'static str, Vec<String>)> = Vec::new();
        for (heading, column) in wanted(a) {
            if !has(a, &column) || !has(b, &column) {
                continue;
            }
            match tables.last_mut() {
                Some((last, columns)) if *last == heading => columns.push(column),
                _ => tables.push((heading, vec![column])),
            }
        }
        if tables.is_empty() && show.is_empty() {
            // Programs that observe nothing in common still have sessions.
            tables.push(("run", vec!["mean_live".into()]));
        }
        Self { tables, only: [own(a, b), own(b, a)] }
    }
}

/// Columns under their headings, in the report's order.
fn usual(figures: &Figures) -> Vec<(&'static str, String)> {
    let mut columns = Vec::new();
    let observed = |name: &str| figures.names.iter().any(|other| other.part == Part::Observe && other.name == name);
    for figure in &figures.names {
        let name = &figure.name;
        match (figure.part, &figure.figure[..]) {
            (Part::Observe, "mean") => columns.push(("observe", format!("observe:{name}"))),
            (Part::Observe, "p99") => columns.push(("observe", format!("observe:{name}.p99"))),
            (Part::Gauge, "mean") if observed(name) => columns.push(("gauge", format!("gauge:{name}"))),
            (Part::Gauge, "mean") => columns.push(("gauge", name.clone())),
            (Part::Ttft, "mean") => columns.push(("where ttft goes", format!("ttft.{name}"))),
            _ => {}
        }
    }
    columns
}

/// One figure in both.
struct Row<'a> {
    column: &'a str,
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Row<'_> {
    fn difference(&self) -> Difference {
        Difference::of(&self.b, &self.a)
    }

    /// A part of the time to the first token that neither program has any of.
    fn is_silent(&self) -> bool {
        self.a.iter().chain(&self.b).all(|value| value.is_nan() || *value == 0.0)
    }
}

impl Report<'_> {
    fn rows<'a>(&self, columns: &'a [String]) -> Vec<Row<'a>> {
        let values = |side: &Side, column: &str| -> Vec<f64> {
            let places = side.runs[0].places(column).unwrap_or_default();
            side.runs.iter().map(|run| run.mean(&places)).collect()
        };
        let [a, b] = &self.sides;
        columns.iter().map(|column| Row { column, a: values(a, column), b: values(b, column) }).collect()
    }

    /// For a person.
    pub(crate) fn text(&self, width: usize) -> String {
        let mut parts = vec![self.heading()];
        for (heading, columns) in &self.figures.tables {
            // What the seeds show stands first: it stays beside the figures where a page is narrow.
            let own = ["A", "B", "B − A", "seed by seed", "95 % interval", "range"];
            let mut table = Columns::new(1, [*heading].into_iter().chain(own)).left(4).left(5).left(6).if_it_fits(6);
            for row in self.rows(columns) {
                if *heading == "where ttft goes" && row.is_silent() {
                    continue;
                }
                let mean = |values: &[f64]| significant(Summary::of(values.iter().copied()).mean, 4);
                let name = match *heading {
                    "where ttft goes" => match row.column {
                        "ttft.total" => "= all".into(),
                        other => other.trim_start_matches("ttft.").replace('_', " "),
                    },
                    _ => head(row.column).to_owned(),
                };
                let difference = row.difference();
                let [by, mut interval, mut verdict, mut range] = words(&difference);
                match difference.verdict() {
                    Verdict::TooFew if difference.summary.count == 0 => verdict = "in no seed of both".into(),
                    Verdict::Equal => (interval, range) = (String::new(), String::new()),
                    _ => {}
                }
                table.row([name, mean(&row.a), mean(&row.b), by, verdict, interval, range].into());
            }
            parts.push(table.draw(width));
        }
        let mut rest = String::new();
        for (side, only) in self.sides.iter().zip(&self.figures.only) {
            // Who has the mean has the rest of it.
            let main = |column: &&String| {
                !only.iter().any(|other| column.strip_prefix(&other[..]).is_some_and(|rest| rest.starts_with('.')))
            };
            let names: Vec<&str> = only.iter().filter(main).map(|column| head(column)).collect();
            if !names.is_empty() {
                rest += &wrapped(&format!("only {} has: ", side.letter), &names.join(", "), width);
            }
        }
        for side in &self.sides {
            if let Some(text) = note(side.letter, side.runs, self.seeds) {
                rest += &wrapped("note: ", &text, width);
            }
        }
        parts.push(rest);
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn heading(&self) -> String {
        let mut table = Columns::new(4, ["", "", "", ""]);
        for side in &self.sides {
            let run = &side.program.run;
            let span = span(run.horizon.0, run.warmup.0);
            table.row([side.letter.into(), side.file.into(), span, label(side.set)].into());
        }
        let table = table.draw(usize::MAX);
        let lines: String = table.lines().skip(1).map(|line| format!("{}\n", line.trim_start())).collect();
        format!("{lines}means over {}; differences are paired by seed\n", self.seeds.words())
    }

    /// For a program.
    pub(crate) fn json(&self) -> String {
        let rows: Vec<Row> = self.figures.tables.iter().flat_map(|(_, columns)| self.rows(columns)).collect();
        let figure = |row: &Row| JsonFigure {
            a: (&row.a[..]).into(),
            b: (&row.b[..]).into(),
            difference: (&row.difference()).into(),
        };
        let notes = self.sides.iter().flat_map(|side| {
            let notes = seed_notes(side.runs, &self.seeds.0).into_iter();
            notes.map(|note| JsonNote { program: side.letter, note })
        });
        let [a, b] = &self.sides;
        let [only_a, only_b] = &self.figures.only;
        let json = Json {
            schema: REPORT_SCHEMA,
            serq_version: env!("CARGO_PKG_VERSION"),
            a: a.into(),
            b: b.into(),
            seeds: &self.seeds.0,
            figures: Pairs(rows.iter().map(|row| (head(row.column), figure(row))).collect()),
            only_a: only_a.iter().map(|column| head(column)).collect(),
            only_b: only_b.iter().map(|column| head(column)).collect(),
            notes: notes.collect(),
        };
        serde_json::to_string_pretty(&json).expect("names and numbers") + "\n"
    }
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    serq_version: &'static str,
    a: JsonSide<'a>,
    b: JsonSide<'a>,
    seeds: &'a [u64],
    figures: Pairs<'a, JsonFigure>,
    only_a: Vec<&'a str>,
    only_b: Vec<&'a str>,
    notes: Vec<JsonNote<'a>>,
}

#[derive(Serialize)]
struct JsonSide<'a> {
    file: &'a str,
    program: &'a str,
    set: Pairs<'a, &'a str>,
    horizon: f64,
    warmup: f64,
}

impl<'a> From<&Side<'a>> for JsonSide<'a> {
    fn from(side: &Side<'a>) -> Self {
        Self {
            file: side.file,
            program: &side.program.name,
            set: Pairs(pairs(side.set)),
            horizon: side.program.run.horizon.0,
            warmup: side.program.run.warmup.0,
        }
    }
}

/// The two, and B minus A.
#[derive(Serialize)]
struct JsonFigure {
    a: JsonValues,
    b: JsonValues,
    difference: JsonDifference,
}

#[derive(Serialize)]
struct JsonNote<'a> {
    program: &'static str,
    #[serde(flatten)]
    note: SeedNote<'a>,
}
