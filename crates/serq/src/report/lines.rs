//! A report as lines: `--facts` for tests and diffs, `--csv` for tables.
//!
//! ```text
//!   observe     lease   mean 2.500000   count 1
//!   pool        P.mem[0]  left 0  in_use_at_end 0
//! ```
//!
//! The first line of an observation has what a sum done by hand gives; its spread
//! and quantiles follow on lines of their own, as do a pool's averages.

use serq_sim::replicate::Figures;
use serq_sim::report::{Report, member_name};

use crate::number::{NOTHING, exact};

/// Columns of a line's first word.
const KIND: usize = 12;

/// `--facts`.
pub(crate) fn facts(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |kind: &str, name: &str, width: usize, gap: &str, figures: &[(&str, String)]| {
        let figures: Vec<String> = figures.iter().map(|(figure, value)| format!("{figure} {value}")).collect();
        let line = format!("{kind:KIND$}{name:width$}{}", figures.join(gap));
        text.push_str(line.trim_end());
        text.push('\n');
    };
    let widest = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0) + 2;
    let whole = |count: u64| count.to_string();

    let run = [
        ("end", fixed(report.end)),
        ("arrivals", whole(report.arrivals)),
        ("ended", whole(report.ended)),
        ("turns", whole(report.turns)),
        ("mean_live", fixed(report.mean_live)),
    ];
    line("run", "", 0, "  ", &run);

    let width = widest(&mut report.observes.iter().map(|observe| observe.name.len()));
    for o in &report.observes {
        line("observe", &o.name, width, "   ", &[("mean", fixed(o.mean)), ("count", whole(o.count))]);
    }
    for o in &report.observes {
        let figures = [
            ("cv2", fixed(o.cv2)),
            ("p50", fixed(o.p50)),
            ("p90", fixed(o.p90)),
            ("p95", fixed(o.p95)),
            ("p99", fixed(o.p99)),
        ];
        line("quantiles", &o.name, width, "  ", &figures);
    }

    let width = widest(&mut report.gauges.iter().map(|gauge| gauge.name.len()));
    for g in &report.gauges {
        let figures = [("mean", fixed(g.mean)), ("min", fixed(g.min)), ("max", fixed(g.max))];
        line("gauge", &g.name, width, "  ", &figures);
    }

    let width = widest(&mut report.stages.iter().map(|stage| member_name(&stage.name, stage.index).len()));
    for s in &report.stages {
        let name = member_name(&s.name, s.index);
        let figures = [
            ("number", fixed(s.mean_number)),
            ("utilization", fixed(s.utilization)),
            ("completed", whole(s.completed)),
            ("wait", fixed(s.mean_wait)),
            ("service", fixed(s.mean_service)),
        ];
        line("stage", &name, width, "  ", &figures);
        if s.kind == "step" {
            let figures = [
                ("iterations", whole(s.iterations)),
                ("prefill_only", fixed(s.prefill_only)),
                ("decode_only", fixed(s.decode_only)),
                ("mixed", fixed(s.mixed)),
                ("decodes", fixed(s.mean_decodes)),
                ("decode_batch", fixed(s.mean_decode_batch)),
                ("decode_step", fixed(s.mean_decode_step)),
                ("itl", fixed(s.mean_itl)),
            ];
            line("steps", &name, width, "  ", &figures);
        }
        if s.idle_with_work {
            line("idle", &name, width, "  ", &[("with_work", "1".into())]);
        }
    }

    let width = widest(&mut report.pools.iter().map(|pool| member_name(&pool.name, pool.index).len()));
    for p in &report.pools {
        let figures = [("left", units(p.left)), ("in_use_at_end", units(p.in_use_at_end))];
        line("pool", &member_name(&p.name, p.index), width, "  ", &figures);
    }
    for p in &report.pools {
        let figures = [
            ("used", fixed(p.mean_used)),
            ("cached", fixed(p.mean_cached)),
            ("queue", fixed(p.mean_queue)),
            ("holders", fixed(p.mean_holders)),
            ("wait", fixed(p.mean_wait)),
            ("admissions", whole(p.admissions)),
            ("evicted_units", fixed(p.evicted_units)),
            ("preemptions", whole(p.preemptions)),
            ("spills", whole(p.spills)),
            ("rejected", whole(p.rejected)),
            ("stuck", whole(p.stuck)),
        ];
        line("averages", &member_name(&p.name, p.index), width, "  ", &figures);
    }
    for p in report.pools.iter().filter(|p| p.mean_leased > 0.0 || p.leases_expired > 0 || p.late_releases > 0) {
        let figures = [
            ("leased", fixed(p.mean_leased)),
            ("expired", whole(p.leases_expired)),
            ("released_late", whole(p.late_releases)),
        ];
        line("leases", &member_name(&p.name, p.index), width, "  ", &figures);
    }

    if let Some(ttft) = &report.ttft {
        let total = [("total", ttft.total)];
        let width = widest(&mut ttft.parts.iter().map(|(word, _)| word.len()));
        for (word, part) in ttft.parts.iter().chain(&total) {
            let figures = [
                ("mean", fixed(part.mean)),
                ("share", fixed(part.share)),
                ("p50", fixed(part.p50)),
                ("p90", fixed(part.p90)),
                ("p99", fixed(part.p99)),
            ];
            line("ttft", word, width, "  ", &figures);
        }
        line("ttft", "count", width, "  ", &[("of", whole(ttft.count))]);
    }

    if let Some(slo) = &report.slo {
        let width = widest(&mut slo.each.iter().map(|limit| limit.name.len()).chain([5]));
        for limit in &slo.each {
            let figures = [("limit", fixed(limit.limit)), ("share", fixed(limit.share)), ("count", whole(limit.count))];
            line("slo", &limit.name, width, "  ", &figures);
        }
        line("slo", "joint", width, "  ", &[("share", fixed(slo.joint)), ("count", whole(slo.joint_count))]);
    }
    for note in &report.notes {
        line("note", &note.text, 0, "", &[]);
    }
    text
}

/// `--csv`: `part,name,index,figure,value`, a figure that does not exist left empty.
pub(crate) fn csv(report: &Report) -> String {
    let figures = Figures::from(report);
    let mut table = Csv::new(&["part", "name", "index", "figure", "value"]);
    for (name, &value) in figures.names.iter().zip(&figures.values) {
        let index = name.index.map_or_else(String::new, |index| index.to_string());
        table.row([name.part.word().into(), name.name.clone(), index, name.figure.clone(), cell(value)]);
    }
    table.text()
}

/// A CSV table in memory.
pub(crate) struct Csv(csv::Writer<Vec<u8>>);

impl Csv {
    /// With its headings.
    pub(crate) fn new<T: AsRef<[u8]>>(heads: &[T]) -> Self {
        let mut table = Self(csv::Writer::from_writer(Vec::new()));
        table.row(heads.iter().map(|head| String::from_utf8_lossy(head.as_ref()).into_owned()));
        table
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, row: impl IntoIterator<Item = String>) {
        self.0.write_record(row).expect("memory takes rows of one length");
    }

    /// The table.
    pub(crate) fn text(self) -> String {
        let bytes = self.0.into_inner().expect("memory takes what is left");
        String::from_utf8(bytes).expect("made of strings")
    }
}

/// A number in a table, empty where there is none.
pub(crate) fn cell(value: f64) -> String {
    if value.is_nan() { String::new() } else { exact(value) }
}

/// Six decimals.
fn fixed(value: f64) -> String {
    if value.is_nan() {
        return NOTHING.into();
    }
    let text = format!("{value:.6}");
    // A sum may end a little below nothing.
    if text == "-0.000000" { text[1..].into() } else { text }
}

/// Units: whole as a rule.
fn units(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{:.0}", value + 0.0) } else { fixed(value) }
}
