//! One program over many seeds: how sure its figures are.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serq_ir::Program;
use serq_sim::replicate::{FigureName, Figures, Part, Replication, Summary};
use serq_sim::report::{Constants, REPORT_SCHEMA};

use super::lines::{Csv, cell};
use super::span;
use super::text::wrapped;
use crate::number::{NOTHING, pair, significant, with_interval};
use crate::precision::{JsonLook, Look};
use crate::seeds::Seeds;
use crate::table::Columns;

/// Families longer than this are one row.
const MEMBERS_SHOWN: usize = 8;

/// Figures a text shows of stages and pools; the files have all.
const SHOWN: [&str; 7] = ["utilization", "mean_wait", "mean_used", "mean_cached", "mean_queue", "preemptions", "left"];

/// The runs and what they were of.
pub(crate) struct Report<'a> {
    /// The program of all.
    pub(crate) program: &'a Program,
    /// One run a seed.
    pub(crate) replication: &'a Replication,
    /// How well figures are known that `--precision` names.
    pub(crate) precision: &'a [Look],
    /// On the runs together.
    pub(crate) remarks: &'a [String],
}

impl Report<'_> {
    /// For a person.
    pub(crate) fn text(&self, width: usize, all_members: bool) -> String {
        let run = &self.program.run;
        let seeds = Seeds(self.replication.seeds.clone()).words();
        let mut parts = vec![format!("{}   {}, {seeds}\n", self.program.name, span(run.horizon.0, run.warmup.0))];
        let mut known = Columns::new(1, ["precision", "mean", "±95 %", "asked", ""]).left(4);
        for look in self.precision {
            known.row(look.words().into());
        }
        parts.push(known.draw(width));
        let summaries = self.replication.summaries();
        let of = |part: Part, figures: &[&str]| -> Vec<(String, String, Summary)> {
            summaries
                .iter()
                .filter(|(name, _)| name.part == part && figures.contains(&&name.figure[..]))
                .map(|(name, summary)| (name.owner(), name.figure.clone(), *summary))
                .collect()
        };
        parts.push(table("observe", of(Part::Observe, &["mean", "p50", "p90", "p99"]), width));
        let mut ways = of(Part::Ttft, &["mean"]);
        ways.retain(|(_, _, summary)| summary.count > 0 && (summary.min != 0.0 || summary.max != 0.0));
        for (owner, ..) in &mut ways {
            *owner = if owner == "total" { "= all".into() } else { owner.replace('_', " ") };
        }
        parts.push(table("where ttft goes", ways, width));
        parts.push(table("limit", of(Part::Slo, &["share"]), width));
        parts.push(table("gauge", of(Part::Gauge, &["mean"]), width));
        parts.push(table("stage", self.members(Part::Stage, all_members), width));
        parts.push(table("pool", self.members(Part::Pool, all_members), width));
        parts.push(self.notes(width));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    /// Rows of stages or pools that say something; of a long family the mean over its members.
    fn members(&self, part: Part, all_members: bool) -> Vec<(String, String, Summary)> {
        let runs = &self.replication.runs;
        let Some(first) = runs.first() else { return Vec::new() };
        let mut rows: Vec<(String, String, Vec<usize>)> = Vec::new();
        for (place, name) in first.names.iter().enumerate() {
            if name.part != part || !SHOWN.contains(&&name.figure[..]) {
                continue;
            }
            let same =
                |other: &&FigureName| other.part == part && other.name == name.name && other.figure == name.figure;
            let members = first.names.iter().filter(same).count();
            if all_members || members <= MEMBERS_SHOWN {
                rows.push((name.owner(), name.figure.clone(), vec![place]));
                continue;
            }
            let owner = format!("{}, mean of {members}", name.name);
            match rows.iter_mut().find(|(other, figure, _)| *other == owner && *figure == name.figure) {
                Some((_, _, places)) => places.push(place),
                None => rows.push((owner, name.figure.clone(), vec![place])),
            }
        }
        rows.into_iter()
            .map(|(owner, figure, places)| (owner, figure, Summary::of(runs.iter().map(|run| run.mean(&places)))))
            .filter(|(_, _, summary)| summary.count > 0 && (summary.min != 0.0 || summary.max != 0.0))
            .collect()
    }

    fn notes(&self, width: usize) -> String {
        let mut text = String::new();
        let mut told: Vec<(&str, Vec<u64>)> = Vec::new();
        for (run, &seed) in self.replication.runs.iter().zip(&self.replication.seeds) {
            for note in &run.notes {
                match told.iter_mut().find(|(other, _)| *other == note) {
                    Some((_, seeds)) => seeds.push(seed),
                    None => told.push((note, vec![seed])),
                }
            }
        }
        for remark in self.remarks {
            text += &wrapped("note: ", remark, width);
        }
        for (note, seeds) in told {
            let who = Seeds(seeds).words();
            text += &wrapped("note: ", &format!("{note} ({who})"), width);
        }
        text
    }

    /// For a spreadsheet.
    pub(crate) fn csv(&self) -> String {
        let mut table = Csv::new(&["part", "name", "index", "figure", "seeds", "median", "min", "max", "mean", "ci"]);
        for (name, s) in self.replication.summaries() {
            let index = name.index.map_or_else(String::new, |index| index.to_string());
            let owner = [name.part.word().into(), name.name.clone(), index, name.figure.clone()];
            let values = [s.median, s.min, s.max, s.mean, s.ci].map(cell);
            table.row(owner.into_iter().chain([s.count.to_string()]).chain(values));
        }
        table.text()
    }

    /// For a program. Laid out as the report of one run, each figure an object.
    pub(crate) fn json(&self) -> String {
        let run = &self.program.run;
        let summaries = self.replication.summaries();
        let named = |part: Part| ByName(&summaries, part);
        let json = Json {
            schema: REPORT_SCHEMA,
            serq_version: env!("CARGO_PKG_VERSION"),
            program: &self.program.name,
            constants: Constants::of(self.program),
            horizon: run.horizon.0,
            warmup: run.warmup.0,
            seeds: &self.replication.seeds,
            precision: self.precision.iter().map(Look::json).collect(),
            run: Figured(summaries.iter().filter(|(name, _)| name.part == Part::Run).collect()),
            observes: named(Part::Observe),
            gauges: named(Part::Gauge),
            stages: ByMember(&summaries, Part::Stage),
            pools: ByMember(&summaries, Part::Pool),
            ttft: named(Part::Ttft),
            slo: named(Part::Slo),
            remarks: self.remarks,
            notes: seed_notes(&self.replication.runs, &self.replication.seeds),
        };
        serde_json::to_string_pretty(&json).expect("names and numbers") + "\n"
    }
}

fn table(head: &str, rows: Vec<(String, String, Summary)>, width: usize) -> String {
    let mut table = Columns::new(2, [head, "", "median", "range", "mean", "±95 %", "seeds"]).left(5);
    let seeds = rows.iter().map(|(_, _, summary)| summary.count).max().unwrap_or(0);
    let mut before = String::new();
    for (owner, figure, s) in rows {
        let shown = if owner == before { String::new() } else { owner.clone() };
        before = owner;
        let (mean, interval) = with_interval(s.mean, s.ci);
        // The number of seeds is worth saying where it is not that of all.
        let of = if s.count == seeds { String::new() } else { s.count.to_string() };
        let figure = figure.strip_prefix("mean_").unwrap_or(&figure).to_owned();
        table.row(vec![shown, figure, significant(s.median, 4), range(&s), mean, interval, of]);
    }
    table.without_silent(3).draw(width)
}

/// `28.0 – 29.1`, with the digits it takes to tell the two apart.
pub(crate) fn range(summary: &Summary) -> String {
    let Summary { count, min, max, .. } = *summary;
    if count == 0 {
        return NOTHING.into();
    }
    if min == max {
        return significant(min, 4);
    }
    let ends = |digits| pair(min, max, digits);
    let (low, high) = (3..9).map(ends).find(|(low, high)| low != high).unwrap_or_else(|| ends(3));
    format!("{low} – {high}")
}

/// NaN and infinities have no JSON.
#[derive(Serialize)]
pub(crate) struct JsonSummary {
    n: usize,
    median: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    ci: Option<f64>,
}

impl From<&Summary> for JsonSummary {
    fn from(s: &Summary) -> Self {
        let figure = |value: f64| value.is_finite().then_some(value);
        Self {
            n: s.count,
            median: figure(s.median),
            min: figure(s.min),
            max: figure(s.max),
            mean: figure(s.mean),
            ci: figure(s.ci),
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    serq_version: &'static str,
    program: &'a str,
    constants: Constants,
    horizon: f64,
    warmup: f64,
    seeds: &'a [u64],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    precision: Vec<JsonLook<'a>>,
    run: Figured<'a>,
    observes: ByName<'a>,
    gauges: ByName<'a>,
    stages: ByMember<'a>,
    pools: ByMember<'a>,
    #[serde(skip_serializing_if = "ByName::is_empty")]
    ttft: ByName<'a>,
    #[serde(skip_serializing_if = "ByName::is_empty")]
    slo: ByName<'a>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    remarks: &'a [String],
    notes: Vec<SeedNote<'a>>,
}

/// A note of one run.
#[derive(Serialize)]
pub(crate) struct SeedNote<'a> {
    seed: u64,
    text: &'a str,
}

/// All notes of runs, one a seed.
pub(crate) fn seed_notes<'a>(runs: &'a [Figures], seeds: &[u64]) -> Vec<SeedNote<'a>> {
    let of_run = |(run, &seed): (&'a Figures, &u64)| run.notes.iter().map(move |text| SeedNote { seed, text });
    runs.iter().zip(seeds).flat_map(of_run).collect()
}

type Row<'a> = (&'a FigureName, Summary);

/// `{"mean": {…}, "p99": {…}}`.
struct Figured<'a>(Vec<&'a Row<'a>>);

impl Serialize for Figured<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, summary)| (&name.figure, JsonSummary::from(summary))))
    }
}

/// `{"ttft": {"mean": {…}, …}, …}`.
struct ByName<'a>(&'a [Row<'a>], Part);

impl<'a> ByName<'a> {
    fn groups(&self) -> Vec<Vec<&'a Row<'a>>> {
        groups(self.0, self.1)
    }

    fn is_empty(&self) -> bool {
        self.groups().is_empty()
    }
}

impl Serialize for ByName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.groups().into_iter().map(|group| (&group[0].0.name, Figured(group))))
    }
}

/// `[{"name": "P.kv", "index": 0, "mean_used": {…}, …}, …]`.
struct ByMember<'a>(&'a [Row<'a>], Part);

impl Serialize for ByMember<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(groups(self.0, self.1).into_iter().map(Member))
    }
}

struct Member<'a>(Vec<&'a Row<'a>>);

impl Serialize for Member<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let name = self.0[0].0;
        map.serialize_entry("name", &name.name)?;
        map.serialize_entry("index", &name.index)?;
        for (name, summary) in &self.0 {
            map.serialize_entry(&name.figure, &JsonSummary::from(summary))?;
        }
        map.end()
    }
}

/// Rows of one part, those of one owner together, owners in the report's order.
fn groups<'a>(rows: &'a [Row<'a>], part: Part) -> Vec<Vec<&'a Row<'a>>> {
    let mut place: BTreeMap<(&str, Option<u32>), usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows.iter().filter(|(name, _)| name.part == part) {
        let at = *place.entry((&row.0.name, row.0.index)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[at].push(row);
    }
    groups
}
