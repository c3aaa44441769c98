//! The report a person reads: the answer first, then why, then the detail.
//!
//! A column appears where some row has something to say in it. A family of many
//! members is three rows: mean, least, greatest.

use serq_sim::report::{Gauge, Note, Observe, Pool, Report, Slo, Stage, TtftPart, member_name};

use crate::number::{NOTHING, count, significant, with_interval};
use crate::table::Columns;

/// Families longer than this are summarised.
const MEMBERS_SHOWN: usize = 8;

/// Draws.
pub(crate) fn draw(report: &Report, width: usize, all_members: bool, seconds: Option<f64>) -> String {
    let mut parts = vec![heading(report)];
    parts.extend([observes(report, width), ttft(report, width), slo(report, width), gauges(report, width)]);
    parts.push(engines(report, width, all_members));
    parts.push(stages(report, width, all_members));
    parts.push(pools(report, width, all_members));
    parts.push(notes(&report.notes, width));
    if let Some(seconds) = seconds {
        let mut events = count(report.events, "event");
        if report.leaps > 0 {
            events += &format!(", {} leapt over", count(report.steps_leapt, "step"));
        }
        let hint = "--seeds 1..20 tells how sure it is";
        parts.push(format!("{} s; {events}   {hint}\n", significant(seconds, 2)));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// `program   time 10 000, warm-up 1000, seed 1`
pub(crate) fn heading(report: &Report) -> String {
    let time = |value: f64| significant(value, 6);
    let mut run = format!("time {}", time(report.end));
    if report.end < report.horizon {
        run += &format!(" of {}", time(report.horizon));
    }
    if report.warmup > 0.0 {
        run += &format!(", warm-up {}", time(report.warmup));
    }
    let mut sessions = vec![count(report.arrivals, "arrival"), format!("{} ended", whole(report.ended as f64))];
    if report.turns > 0 {
        sessions.push(count(report.turns, "turn"));
    }
    sessions.push(format!("{} live on average", short(report.mean_live)));
    format!("{}   {run}, seed {}\n{}\n", report.program, report.seed, sessions.join(", "))
}

pub(crate) fn observes(report: &Report, width: usize) -> String {
    let mut table = Columns::new(1, ["observe", "mean", "±95 %", "p50", "p90", "p95", "p99", "samples", "cv2"])
        .left(2)
        .if_it_fits(8);
    for o in &report.observes {
        table.row(observe_row(o).into_iter().chain([significant(o.cv2, 3)]).collect());
    }
    table.without_silent(2).draw(width)
}

/// Name, mean, its interval, p50, p90, p95, p99, samples.
pub(crate) fn observe_row(o: &Observe) -> Vec<String> {
    let (mean, interval) = with_interval(o.mean, o.ci);
    let q = |value: f64| significant(value, 3);
    vec![o.name.clone(), mean, interval, q(o.p50), q(o.p90), q(o.p95), q(o.p99), whole(o.count as f64)]
}

/// Where the time to the first token goes, in the order of a request's way; the means sum.
fn ttft(report: &Report, width: usize) -> String {
    let Some(ttft) = &report.ttft else { return String::new() };
    let mut table = Columns::new(1, ["where ttft goes", "mean", "share", "p50", "p90", "p99"]);
    for (word, part) in ttft.parts.iter().filter(|(_, part)| part.mean != 0.0) {
        table.row(part_row(&word.replace('_', " "), part));
    }
    table.row(part_row("= all", &ttft.total));
    if ttft.count == 0 { String::new() } else { table.draw(width) }
}

fn part_row(name: &str, part: &TtftPart) -> Vec<String> {
    let q = |value: f64| significant(value, 3);
    vec![name.to_owned(), short(part.mean), percent(part.share), q(part.p50), q(part.p90), q(part.p99)]
}

fn slo(report: &Report, width: usize) -> String {
    let Some(slo) = &report.slo else { return String::new() };
    let mut table = Columns::new(1, ["limit", "at most", "within", "of"]);
    slo_rows(slo).into_iter().for_each(|row| table.row(row));
    table.draw(width)
}

/// Observation, limit, share within it, of how many; then all limits together.
pub(crate) fn slo_rows(slo: &Slo) -> Vec<Vec<String>> {
    let share = |share: f64| if share.is_nan() { NOTHING.into() } else { format!("{:.2} %", 100.0 * share) };
    let row =
        |name: &str, limit: String, within: f64, of: u64| vec![name.into(), limit, share(within), whole(of as f64)];
    let each = slo.each.iter().map(|limit| row(&limit.name, short(limit.limit), limit.share, limit.count));
    let joint = (slo.each.len() > 1).then(|| row("all, per turn", String::new(), slo.joint, slo.joint_count));
    each.chain(joint).collect()
}

fn gauges(report: &Report, width: usize) -> String {
    let mut table = Columns::new(1, ["gauge", "mean", "±95 %", "min", "max"]).left(2);
    report.gauges.iter().for_each(|g| table.row(gauge_row(g)));
    table.draw(width)
}

/// Name, mean, its interval, least, greatest.
pub(crate) fn gauge_row(g: &Gauge) -> Vec<String> {
    let (mean, interval) = with_interval(g.mean, g.ci);
    vec![g.name.clone(), mean, interval, short(g.min), short(g.max)]
}

/// A column: heading, value of a row, how to write it.
type Column<T> = (&'static str, fn(&T) -> f64, fn(f64) -> String);

fn engines(report: &Report, width: usize, all_members: bool) -> String {
    let columns: [Column<Stage>; 14] = [
        ("busy", |s| s.utilization, percent),
        ("batch", |s| s.mean_decode_batch, short),
        ("step", |s| s.mean_decode_step, short),
        ("itl", |s| s.mean_itl, short),
        ("itl p99", |s| s.itl_p99, short),
        ("done", |s| s.completed as f64, whole),
        ("per time", |s| s.throughput, short),
        ("service", |s| s.mean_service, short),
        ("jobs", |s| s.mean_number, short),
        ("steps", |s| s.iterations as f64, whole),
        ("prefill only", |s| s.prefill_only, percent),
        ("decode only", |s| s.decode_only, percent),
        ("mixed", |s| s.mixed, percent),
        ("idle with work", |s| f64::from(u8::from(s.idle_with_work)), whole),
    ];
    let rows = report.stages.iter().filter(|stage| stage.kind == "step");
    families("engine", rows, |s| (&s.name, s.index), &columns, 2, width, all_members)
}

fn stages(report: &Report, width: usize, all_members: bool) -> String {
    let columns: [Column<Stage>; 6] = [
        // Every job of a delay is alone: busy or not says nothing.
        ("busy", |s| if s.kind == "delay" { f64::NAN } else { s.utilization }, percent),
        ("jobs", |s| s.mean_number, short),
        ("done", |s| s.completed as f64, whole),
        ("per time", |s| s.throughput, short),
        ("wait", |s| if s.kind == "delay" { f64::NAN } else { s.mean_wait }, short),
        ("service", |s| s.mean_service, short),
    ];
    let rows = report.stages.iter().filter(|stage| stage.kind != "step");
    families("stage", rows, |s| (&s.name, s.index), &columns, 2, width, all_members)
}

fn pools(report: &Report, width: usize, all_members: bool) -> String {
    let columns: [Column<Pool>; 19] = [
        ("used", |p| p.mean_used, short),
        ("cap", |p| p.cap, short),
        ("in use at end", |p| p.in_use_at_end, short),
        ("left", |p| p.left, short),
        ("cached", |p| p.mean_cached, short),
        ("holders", |p| p.mean_holders, short),
        ("waiting", |p| p.mean_queue, short),
        ("wait", |p| p.mean_wait, short),
        ("admitted", |p| p.admissions as f64, whole),
        ("evicted", |p| p.evicted_units, short),
        ("entries", |p| p.evicted_entries as f64, whole),
        ("preempted", |p| p.preemptions as f64, whole),
        ("spilled", |p| p.spills as f64, whole),
        ("rejected", |p| p.rejected as f64, whole),
        ("stuck", |p| p.stuck as f64, whole),
        ("expired", |p| p.leases_expired as f64, whole),
        ("released late", |p| p.late_releases as f64, whole),
        ("reads failed", |p| p.reads_failed as f64, whole),
        ("over cap", |p| p.over_cap.as_ref().map_or(0.0, |waiter| waiter.need), short),
    ];
    families("pool", report.pools.iter(), |p| (&p.name, p.index), &columns, 5, width, all_members)
}

fn families<'a, T: 'a>(
    head: &str,
    rows: impl Iterator<Item = &'a T>,
    name: impl Fn(&'a T) -> (&'a str, Option<u32>),
    columns: &[Column<T>],
    keep: usize,
    width: usize,
    all_members: bool,
) -> String {
    let heads = [head].into_iter().chain(columns.iter().map(|(head, ..)| *head));
    let mut table = Columns::new(1, heads);
    let rows: Vec<&T> = rows.collect();
    for family in rows.chunk_by(|&a, &b| name(a).0 == name(b).0) {
        let family_name = name(family[0]).0;
        if all_members || family.len() <= MEMBERS_SHOWN {
            for &row in family {
                let (name, index) = name(row);
                let cells = columns.iter().map(|(_, value, write)| write(value(row)));
                table.row([member_name(name, index)].into_iter().chain(cells).collect());
            }
            continue;
        }
        let figures = |column: usize| {
            let values = family.iter().map(move |&row| columns[column].1(row)).filter(|value| !value.is_nan());
            values.collect::<Vec<f64>>()
        };
        let mut summary = |label: String, fold: fn(&[f64]) -> f64| {
            let cell = |column: usize| {
                let values = figures(column);
                if values.is_empty() { NOTHING.into() } else { columns[column].2(fold(&values)) }
            };
            table.row([label].into_iter().chain((0..columns.len()).map(cell)).collect());
        };
        summary(format!("{family_name}, mean of {}", family.len()), |v| v.iter().sum::<f64>() / v.len() as f64);
        summary("  least".into(), |v| v.iter().copied().fold(f64::INFINITY, f64::min));
        summary("  greatest".into(), |v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    }
    table.without_silent(keep).draw(width)
}

fn short(value: f64) -> String {
    significant(value, 4)
}

fn whole(value: f64) -> String {
    significant(value, 9)
}

fn percent(value: f64) -> String {
    match value {
        value if value.is_nan() => NOTHING.into(),
        0.0 => "0".into(),
        value => format!("{} %", significant(100.0 * value, 3)),
    }
}

/// Each as `note: …`, wrapped.
pub(crate) fn notes(notes: &[Note], width: usize) -> String {
    notes.iter().map(|note| wrapped("note: ", &note.text, width)).collect()
}

/// Words broken at the width, later lines under the first word.
pub(crate) fn wrapped(start: &str, words: &str, width: usize) -> String {
    let indent = start.chars().count();
    let mut text = String::from(start);
    let mut column = indent;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}
