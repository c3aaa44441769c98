//! The report of a run with real clients: as that of a simulated one, with what the clients measured.

use serq_sim::report::Observe;

use super::lines::{Csv, cell};
use super::text;
use crate::number::{NOTHING, count, significant};
use crate::playing::{ClientSide, Outcome};
use crate::table::Columns;

/// For a person.
pub(crate) fn draw(outcome: &Outcome, width: usize) -> String {
    let Outcome { report, clients } = outcome;
    let mut parts = vec![text::heading(report), text::observes(report, width)];
    parts.push(table("clients", &clients.measured, width));
    parts.push(table("server says", &clients.server, width));
    parts.push(requests(clients));
    parts.push(text::notes(&report.notes, width));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn table(head: &str, rows: &[Observe], width: usize) -> String {
    let mut table = Columns::new(1, [head, "mean", "±95 %", "p50", "p90", "p99", "samples"]).left(2);
    for row in rows.iter().filter(|row| row.count > 0) {
        let mut cells = text::observe_row(row);
        // One line each on a page of 80 columns.
        cells.remove(5);
        table.row(cells);
    }
    table.without_silent(2).draw(width)
}

fn requests(clients: &ClientSide) -> String {
    let failed: u64 = clients.failed.values().map(|failures| failures.count).sum();
    let mut line = format!("{}, {} answered", count(clients.requests, "request"), clients.answered);
    if failed > 0 {
        line += &format!(", {failed} failed");
    }
    if clients.cut_off > 0 {
        line += &format!(", {} under way at the end", clients.cut_off);
    }
    let core =
        clients.core_share.map_or_else(|| NOTHING.into(), |share| format!("{} %", significant(100.0 * share, 2)));
    format!("{line}\n{} at {}; the clients took {core} of a core\n", clients.model, clients.url)
}

/// `part,name,index,figure,value`, as of a simulated run.
pub(crate) fn csv(outcome: &Outcome) -> String {
    let mut table = Csv::new(&["part", "name", "index", "figure", "value"]);
    let Outcome { report, clients } = outcome;
    let mut row = |part: &str, name: &str, figure: &str, value: f64| {
        table.row([part.into(), name.into(), String::new(), figure.into(), cell(value)]);
    };
    for (figure, value) in [
        ("end", report.end),
        ("arrivals", report.arrivals as f64),
        ("ended", report.ended as f64),
        ("turns", report.turns as f64),
        ("mean_live", report.mean_live),
        ("requests", clients.requests as f64),
        ("answered", clients.answered as f64),
        ("cut_off", clients.cut_off as f64),
        ("core_share", clients.core_share.unwrap_or(f64::NAN)),
    ] {
        row("run", "", figure, value);
    }
    for (kind, failures) in &clients.failed {
        row("failed", kind, "count", failures.count as f64);
    }
    let groups = [("observe", &report.observes), ("clients", &clients.measured), ("server", &clients.server)];
    for (part, o) in groups.into_iter().flat_map(|(part, all)| all.iter().map(move |one| (part, one))) {
        let figures = [
            ("count", o.count as f64),
            ("mean", o.mean),
            ("ci", o.ci),
            ("cv2", o.cv2),
            ("p50", o.p50),
            ("p90", o.p90),
            ("p95", o.p95),
            ("p99", o.p99),
        ];
        figures.into_iter().for_each(|(figure, value)| row(part, &o.name, figure, value));
    }
    table.text()
}
