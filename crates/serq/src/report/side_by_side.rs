//! Two reports side by side, figure by figure.
//!
//! A report is read as what its JSON says, whichever command printed it: figures are numbers with, for a
//! mean, its half-width beside it; over many seeds each figure is an object that has both.
//!
//! A figure is *inside* if the two differ by no more than the 95 % interval of their difference: its
//! half-width is the root of the sum of both half-widths' squares. A figure without an interval of its own
//! beside one over n seeds is judged as one seed more: by the half-width of the mean times √(n + 1).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use serq_sim::report::{REPORT_SCHEMA, member_name};
use serq_sim::ttft::Part;

use crate::number::{NOTHING, signed, significant, with_interval};
use crate::table::Columns;

/// Of observations, and of everything else that is measured like one.
const OF_SAMPLES: [&str; 4] = ["mean", "p50", "p90", "p99"];
const OF_GAUGES: [&str; 1] = ["mean"];
const OF_STAGES: [&str; 6] =
    ["utilization", "mean_number", "mean_wait", "mean_service", "mean_decode_batch", "mean_itl"];
const OF_POOLS: [&str; 5] = ["mean_used", "mean_cached", "mean_queue", "mean_wait", "preemptions"];

/// A figure, and the half-width of its 95 % interval; NaN where it has none.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure {
    value: f64,
    ci: f64,
    /// Over how many seeds it is the mean.
    seeds: Option<f64>,
}

impl Figure {
    /// Whether another is inside; `None` where nothing is known of it.
    fn has_inside(self, other: Self) -> Option<bool> {
        let half = match (self.ci.is_finite(), other.ci.is_finite()) {
            (true, true) => self.ci.hypot(other.ci),
            (true, false) => self.ci * (self.seeds? + 1.0).sqrt(),
            (false, true) => other.ci * (other.seeds? + 1.0).sqrt(),
            (false, false) => return None,
        };
        Some((self.value - other.value).abs() <= half)
    }
}

/// A report.
pub(crate) struct Side {
    path: String,
    program: String,
    constants: Option<BTreeMap<String, String>>,
    /// `time 600, warm-up 60, seed 1`.
    run: String,
    /// Part, owner, figure; in the report's order.
    figures: Vec<((&'static str, String, String), Figure)>,
}

impl Side {
    /// A report's JSON.
    ///
    /// # Errors
    ///
    /// One sentence: what it is instead.
    pub(crate) fn of(path: &str, json: &Value) -> Result<Self, String> {
        let no_report = || format!("{path} is no report: give what --json of `serq run` or `serq load` printed");
        let report = json.as_object().ok_or_else(no_report)?;
        if report.contains_key("cells") {
            return Err(format!("{path} is a table of several settings: give the report of one (`serq run --json`)"));
        }
        let program = report.get("program").and_then(Value::as_str).ok_or_else(no_report)?.to_owned();
        let observes = report.get("observes").and_then(Value::as_object).ok_or_else(no_report)?;
        let schema = report.get("schema").and_then(Value::as_u64).ok_or_else(no_report)?;
        if schema != u64::from(REPORT_SCHEMA) {
            return Err(format!("{path} is a report of schema {schema}, and this serq reads {REPORT_SCHEMA}"));
        }
        let mut side = Self {
            path: path.to_owned(),
            program,
            constants: report
                .get("constants")
                .and_then(Value::as_object)
                .map(|constants| constants.iter().map(|(name, value)| (name.clone(), word(value))).collect()),
            run: run_of(report),
            figures: Vec::new(),
        };
        side.add_all("observe", observes, &OF_SAMPLES);
        if let Some(ttft) = report.get("ttft").and_then(Value::as_object) {
            // Over seeds they stand beside the total.
            let parts = ttft.get("parts").and_then(Value::as_object).unwrap_or(ttft);
            for part in Part::ALL.map(Part::word) {
                if let Some(of) = parts.get(part).and_then(Value::as_object) {
                    side.add("ttft", part, of, &OF_SAMPLES[..1]);
                }
            }
            if let Some(total) = ttft.get("total").and_then(Value::as_object) {
                side.add("ttft", "total", total, &OF_SAMPLES);
            }
        }
        if let Some(measured) = report.get("clients").and_then(|clients| clients["measured"].as_object()) {
            side.add_all("clients", measured, &OF_SAMPLES);
        }
        if let Some(gauges) = report.get("gauges").and_then(Value::as_object) {
            side.add_all("gauge", gauges, &OF_GAUGES);
        }
        for (part, list, figures) in [("stage", "stages", &OF_STAGES[..]), ("pool", "pools", &OF_POOLS[..])] {
            for member in report.get(list).and_then(Value::as_array).into_iter().flatten() {
                let Some(member) = member.as_object() else { continue };
                let name = member.get("name").and_then(Value::as_str).unwrap_or_default();
                let index = member.get("index").and_then(Value::as_u64).map(|index| index as u32);
                side.add(part, &member_name(name, index), member, figures);
            }
        }
        Ok(side)
    }

    fn add_all(&mut self, part: &'static str, owners: &Map<String, Value>, figures: &[&str]) {
        for (owner, of) in owners {
            if let Some(of) = of.as_object() {
                self.add(part, owner, of, figures);
            }
        }
    }

    fn add(&mut self, part: &'static str, owner: &str, of: &Map<String, Value>, figures: &[&str]) {
        for figure in figures {
            let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(f64::NAN);
            let found = match of.get(*figure) {
                Some(Value::Object(summary)) => Figure {
                    value: number(summary.get("mean")),
                    ci: number(summary.get("ci")),
                    seeds: summary.get("n").and_then(Value::as_f64),
                },
                other => {
                    let ci = if *figure == "mean" { number(of.get("ci")) } else { f64::NAN };
                    Figure { value: number(other), ci, seeds: None }
                }
            };
            if !found.value.is_nan() {
                self.figures.push(((part, owner.to_owned(), (*figure).to_owned()), found));
            }
        }
    }

    fn find(&self, part: &str, owner: &str, figure: &str) -> Option<Figure> {
        let is_it =
            |(name, _): &&((&str, String, String), Figure)| name.0 == part && name.1 == owner && name.2 == figure;
        self.figures.iter().find(is_it).map(|(_, figure)| *figure)
    }
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn run_of(report: &Map<String, Value>) -> String {
    let number = |name: &str| report.get(name).and_then(Value::as_f64);
    let time = number("end").or(number("horizon")).unwrap_or(f64::NAN);
    let mut text = format!("time {}", significant(time, 6));
    if let Some(warmup) = number("warmup").filter(|warmup| *warmup > 0.0) {
        text += &format!(", warm-up {}", significant(warmup, 6));
    }
    match (report.get("seeds").and_then(Value::as_array), number("seed")) {
        (Some(seeds), _) => text += &format!(", {} seeds", seeds.len()),
        (None, Some(seed)) => text += &format!(", seed {seed}"),
        _ => {}
    }
    if let Some(url) = report.get("clients").and_then(|clients| clients["url"].as_str()) {
        text += &format!(", real clients of {url}");
    }
    text
}

/// A figure that both have.
#[derive(Serialize)]
struct Row {
    part: &'static str,
    name: String,
    figure: String,
    predicted: f64,
    predicted_ci: Option<f64>,
    measured: f64,
    measured_ci: Option<f64>,
    /// Measured over predicted, less 1; none where nothing was predicted.
    off: Option<f64>,
    /// None where no interval is known.
    inside: Option<bool>,
}

impl Row {
    fn is_mean_of_samples(&self) -> bool {
        let of_samples = matches!((self.part, &self.name[..]), ("observe" | "clients", _) | ("ttft", "total"));
        of_samples && self.figure == "mean"
    }

    fn is_first_token(&self) -> bool {
        matches!((self.part, &self.name[..]), ("observe" | "clients", "ttft") | ("ttft", "total"))
    }
}

/// The part of the time to the first token that differs most.
#[derive(Serialize)]
struct LookAt {
    part: String,
    by: f64,
}

/// Two reports of one program.
pub(crate) struct SideBySide {
    predicted: Side,
    measured: Side,
    rows: Vec<Row>,
    look_at: Option<LookAt>,
}

impl SideBySide {
    /// Compares.
    ///
    /// # Errors
    ///
    /// One sentence: they are of different programs, or of different settings.
    pub(crate) fn of(predicted: Side, measured: Side) -> Result<Self, String> {
        let (a, b) = (&predicted, &measured);
        if a.program != b.program {
            return Err(format!("{} is of {}, and {} of {}: nothing to compare", a.path, a.program, b.path, b.program));
        }
        if let (Some(of_a), Some(of_b)) = (&a.constants, &b.constants) {
            let other = |name: &&String| of_a.get(*name) != of_b.get(*name);
            let names: Vec<&String> =
                of_a.keys().chain(of_b.keys().filter(|name| !of_a.contains_key(*name))).filter(other).collect();
            if let Some(name) = names.first() {
                let said = |of: &BTreeMap<String, String>| of.get(*name).cloned().unwrap_or_else(|| "nothing".into());
                let more =
                    if names.len() > 1 { format!(" (and {} more differ)", names.len() - 1) } else { String::new() };
                return Err(format!(
                    "the settings differ: {name} is {} in {} and {} in {}{more}; give both commands the same --set",
                    said(of_a),
                    a.path,
                    said(of_b),
                    b.path
                ));
            }
        }
        let row = |((part, owner, figure), p): &((&'static str, String, String), Figure)| {
            let m = b.find(part, owner, figure)?;
            // What rounding leaves is nothing.
            let off = Some(m.value / p.value - 1.0).filter(|off| off.is_finite());
            let off =
                if m.value == p.value { Some(0.0) } else { off.map(|off| if off.abs() < 1e-9 { 0.0 } else { off }) };
            Some(Row {
                part,
                name: owner.clone(),
                figure: figure.clone(),
                predicted: p.value,
                predicted_ci: p.ci.is_finite().then_some(p.ci),
                measured: m.value,
                measured_ci: m.ci.is_finite().then_some(m.ci),
                off,
                inside: if off == Some(0.0) { Some(true) } else { p.has_inside(m) },
            })
        };
        let rows: Vec<Row> = a.figures.iter().filter_map(row).collect();
        if rows.is_empty() {
            return Err(format!("{} and {} have no figure in common", a.path, b.path));
        }
        let parts = rows.iter().filter(|row| row.part == "ttft" && row.name != "total" && row.figure == "mean");
        let most = parts.max_by(|x, y| (x.measured - x.predicted).abs().total_cmp(&(y.measured - y.predicted).abs()));
        let look_at = most.map(|row| LookAt { part: row.name.replace('_', " "), by: row.measured - row.predicted });
        Ok(Self { predicted, measured, rows, look_at })
    }

    /// Observations whose mean is further off than a share of the prediction.
    pub(crate) fn beyond(&self, within: f64) -> Vec<String> {
        // 105 over 100 is a rounding more than 1.05.
        let is_beyond = |row: &&Row| row.is_mean_of_samples() && row.off.is_none_or(|off| off.abs() > within + 1e-9);
        let name = |row: &Row| if row.part == "ttft" { format!("ttft.{}", row.name) } else { row.name.clone() };
        self.rows.iter().filter(is_beyond).map(name).collect()
    }

    /// For a person.
    pub(crate) fn text(&self, width: usize) -> String {
        let mut text = format!(
            "{}\n  predicted  {}   {}\n  measured   {}   {}\n",
            self.predicted.program, self.predicted.path, self.predicted.run, self.measured.path, self.measured.run
        );
        for (part, head) in [
            ("observe", "observe"),
            ("clients", "clients"),
            ("ttft", "where ttft goes"),
            ("gauge", "gauge"),
            ("stage", "stage"),
            ("pool", "pool"),
        ] {
            let mut table = Columns::new(2, [head, "", "predicted", "measured", "off", ""]).left(2).left(3).left(5);
            let mut before = "";
            for row in self.rows.iter().filter(|row| row.part == part && (row.predicted != 0.0 || row.measured != 0.0))
            {
                let shown = match (&row.name[..] == before, part, &row.name[..]) {
                    (true, ..) => String::new(),
                    (false, "ttft", "total") => "= all".into(),
                    (false, "ttft", name) => name.replace('_', " "),
                    (false, _, name) => name.into(),
                };
                before = &row.name;
                let figure = row.figure.strip_prefix("mean_").unwrap_or(&row.figure).to_owned();
                let with = |value: f64, ci: Option<f64>| {
                    let (value, ci) = with_interval(value, ci.unwrap_or(f64::NAN));
                    format!("{value} {ci}").trim_end().to_owned()
                };
                let off = row.off.map_or_else(|| NOTHING.into(), |off| format!("{} %", signed(100.0 * off, 2)));
                let verdict = row.inside.map_or("", |inside| if inside { "inside" } else { "outside" });
                let (predicted, measured) =
                    (with(row.predicted, row.predicted_ci), with(row.measured, row.measured_ci));
                table.row(vec![shown, figure, predicted, measured, off, verdict.into()]);
            }
            let drawn = table.draw(width);
            if !drawn.is_empty() {
                text += &format!("\n{drawn}");
            }
        }
        let outside = |row: &&Row| row.is_first_token() && row.figure == "mean" && row.inside == Some(false);
        if let (Some(row), Some(LookAt { part, by })) = (self.rows.iter().find(outside), &self.look_at) {
            let name = if row.part == "ttft" { "the time to the first token" } else { &row.name[..] };
            text += &format!("\n{name} is outside: look at {part} ({})\n", signed(*by, 2));
        }
        text
    }

    /// For a program.
    pub(crate) fn json(&self, within: Option<f64>) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            program: &'a str,
            predicted: &'a str,
            measured: &'a str,
            rows: &'a [Row],
            #[serde(skip_serializing_if = "Option::is_none")]
            look_at: &'a Option<LookAt>,
            #[serde(skip_serializing_if = "Option::is_none")]
            beyond: Option<Vec<String>>,
        }
        let json = Json {
            program: &self.predicted.program,
            predicted: &self.predicted.path,
            measured: &self.measured.path,
            rows: &self.rows,
            look_at: &self.look_at,
            beyond: within.map(|within| self.beyond(within)),
        };
        serde_json::to_string_pretty(&json).expect("names and numbers") + "\n"
    }
}
