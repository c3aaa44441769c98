//! The page of one run.

use maud::{Markup, PreEscaped, html};
use serq_ir::Program;
use serq_sim::record::Recorder;
use serq_sim::replicate::{Part as Figured, Replication};
use serq_sim::report::{self, Report, TtftPart};
use serq_sim::ttft::Part;

use super::chart::{Axis, COLOURS, Chart, Curve};
use super::distribution::Distribution;
use super::gather::{Gathered, GroupTracks};
use super::instances::{self, Group};
use super::{figure, notes, page, table};
use crate::drawing;
use crate::number::{count, significant, with_interval};
use crate::report::over_seeds::range;
use crate::report::span;
use crate::report::text::{gauge_row, observe_row, slo_rows};
use crate::seeds::Seeds;

/// A page that is being gathered for.
pub(crate) struct RunPage<'a> {
    program: &'a Program,
    groups: Vec<Group>,
    gathered: Gathered,
}

impl<'a> RunPage<'a> {
    pub(crate) fn new(program: &'a Program, slo: &[(String, f64)]) -> Self {
        let groups = instances::of(program);
        let gathered = Gathered::new(program, &groups, slo);
        Self { program, groups, gathered }
    }

    /// To be told what happens.
    pub(crate) fn recorder(&mut self) -> &mut dyn Recorder {
        &mut self.gathered
    }

    /// The page; with many seeds, of the run of the first one, and how sure its figures are.
    pub(crate) fn draw(&self, report: &Report, seeds: Option<&Replication>) -> String {
        let sections = html! {
            @if let Some(replication) = seeds { (over_seeds(replication)) }
            (self.headline(report))
            (ttft(report))
            (self.limits(report))
            (self.spread(report))
            section {
                h2 { "The deployment" }
                div.drawing { (PreEscaped(drawing::draw(self.program))) }
            }
            (self.over_time(report))
            (gauges(report))
            (notes(&report.notes.iter().map(|note| note.text.clone()).collect::<Vec<String>>()))
            (constants(self.program))
        };
        page(&report.program, &heading(report), sections)
    }

    fn headline(&self, report: &Report) -> Markup {
        let rows: Vec<Vec<String>> = report.observes.iter().map(observe_row).collect();
        html! {
            @if !rows.is_empty() {
                section {
                    h2 { "What requests saw" }
                    (table(&["observation", "mean", "±95 %", "p50", "p90", "p95", "p99", "samples"], &rows))
                }
            }
        }
    }

    fn limits(&self, report: &Report) -> Markup {
        let Some(slo) = &report.slo else { return html! {} };
        let bounds = self.gathered.bounds();
        html! {
            section {
                h2 { "Within the limits" }
                (table(&["observation", "at most", "within", "of"], &slo_rows(slo)))
                @for ((limit, bounds), limited) in slo.each.iter().zip(&bounds).zip(&self.gathered.limited) {
                    @if !bounds.is_empty() {
                        h3 { "What made " (limit.name) " late" }
                        p.note {
                            (count(limited.late, "sample")) " of " (significant(limited.count as f64, 9))
                            " above " (significant(limit.limit, 4))
                            ", each by the part of its time that was furthest above that part's median within the limit"
                            @if limited.unknown > 0 { "; " (significant(limited.unknown as f64, 9)) " could not be told" }
                            "."
                        }
                        (causes(bounds))
                    }
                }
            }
        }
    }

    fn spread(&self, report: &Report) -> Markup {
        let limit = |name: &str| report.slo.as_ref()?.each.iter().find(|l| l.name == name).map(|l| l.limit);
        let mut charts: Vec<Markup> = Vec::new();
        let observed = |name: &str| report.observes.iter().any(|observe| observe.name == name);
        if !observed("ttft") && self.gathered.first_token.is_spread() {
            charts.push(figure("time to first token", &[], &cdf(&self.gathered.first_token, None)));
        }
        for (observe, distribution) in report.observes.iter().zip(&self.gathered.observes) {
            if distribution.is_spread() {
                charts.push(figure(&observe.name, &[], &cdf(distribution, limit(&observe.name))));
            }
        }
        if !observed("tpot") && self.gathered.per_token.is_spread() {
            charts.push(figure("time per output token behind the first", &[], &cdf(&self.gathered.per_token, None)));
        }
        html! {
            @if !charts.is_empty() {
                section {
                    h2 { "How they are spread" }
                    p.note { "The share of samples at or below a value, after the warm-up. A red line is a limit." }
                    div.charts { @for chart in &charts { (chart) } }
                }
            }
        }
    }

    fn over_time(&self, report: &Report) -> Markup {
        html! {
            section {
                h2 { "Over time" }
                p.note {
                    "Lines are means over each of " (self.stretches()) " stretches of the run, bands reach from the least "
                    "to the greatest value in them. The warm-up is drawn, too."
                }
                @for (group, tracks) in self.groups.iter().zip(&self.gathered.groups) {
                    @let charts = self.group_charts(tracks, report.end);
                    h3 { (group.title) }
                    (self.group_figures(group, tracks, report))
                    div.charts.four { @for chart in &charts { (chart) } }
                }
            }
        }
    }

    fn stretches(&self) -> usize {
        self.gathered.tracks.iter().map(|track| track.series.points().count()).max().unwrap_or(0)
    }

    /// Of one instance, or of the mean one.
    fn group_figures(&self, group: &Group, tracks: &GroupTracks, report: &Report) -> Markup {
        let stages = || group.engines.iter().map(|&engine| &report.stages[engine as usize]);
        let pools =
            |all: &[u32]| all.iter().map(|&pool| report.pools[pool as usize].clone()).collect::<Vec<report::Pool>>();
        let percent = |value: f64| format!("{} %", significant(100.0 * value, 3));
        let mut figures: Vec<(&str, String)> = Vec::new();
        let mean = |of: &dyn Fn(&report::Stage) -> f64| {
            let values: Vec<f64> = stages().map(of).filter(|value| !value.is_nan()).collect();
            if values.is_empty() { f64::NAN } else { values.iter().sum::<f64>() / values.len() as f64 }
        };
        for (name, value, shown) in [
            ("busy", mean(&|s| s.utilization), percent as fn(f64) -> String),
            ("decodes a step", mean(&|s| s.mean_decode_batch), short),
            ("between tokens", mean(&|s| s.mean_itl), short),
            ("p99 between tokens", mean(&|s| s.itl_p99), short),
        ] {
            if !value.is_nan() {
                figures.push((name, shown(value)));
            }
        }
        if let Some(used) = tracks.used {
            let memory = pools(&group.memory);
            let mean = memory.iter().map(|p| p.mean_used / p.cap).sum::<f64>() / memory.len() as f64;
            let peak = self.gathered.tracks[used].series.peak();
            figures.push(("memory in use", format!("{}, peak {}", percent(mean), percent(peak))));
        }
        let all = pools(&group.pools);
        for (name, sum) in [
            ("preempted", all.iter().map(|p| p.preemptions).sum::<u64>()),
            ("rejected", all.iter().map(|p| p.rejected).sum()),
            ("stuck", all.iter().map(|p| p.stuck).sum()),
        ] {
            if sum > 0 {
                figures.push((name, significant(sum as f64, 9)));
            }
        }
        for (name, track, _) in &tracks.wires {
            let wires: Vec<&report::Stage> = group
                .wires
                .iter()
                .map(|&wire| &report.stages[wire as usize])
                .filter(|wire| wire.name == *name)
                .collect();
            let mean = wires.iter().map(|wire| wire.utilization).sum::<f64>() / wires.len() as f64;
            if self.gathered.tracks[*track].series.peak() > 0.0 && !mean.is_nan() {
                figures.push((name, format!("{} busy", percent(mean))));
            }
        }
        html! {
            ul.figures { @for (name, value) in &figures { li { span { (name) " " } b { (value) } } } }
        }
    }

    fn group_charts(&self, tracks: &GroupTracks, end: f64) -> Vec<Markup> {
        let mut charts = Vec::new();
        let mut add = |title: &str, of: &[(&str, Option<usize>)], percent: bool| {
            let peak_of = |track: usize| self.gathered.tracks[track].series.peak();
            let all = of.iter().filter_map(|(name, track)| track.map(|track| (*name, track)));
            let there: Vec<(&str, usize)> = all.filter(|(_, track)| peak_of(*track) > 0.0).collect();
            let peak = there.iter().map(|(_, track)| peak_of(*track)).fold(0.0, f64::max);
            if peak == 0.0 {
                return;
            }
            let names: Vec<&str> = there.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
            // Two bands over each other hide more than they show.
            let curves = there.iter().enumerate().map(|(at, &(_, track))| self.curve(track, at == 0)).collect();
            let chart = Chart {
                x: Axis::Linear(0.0, end),
                from_zero: true,
                // A share of little is drawn as little, unless nothing would be seen of it.
                top: (percent && peak > 0.2).then_some(peak.max(1.0)),
                percent,
                curves,
                limit: None,
            };
            charts.push(figure(title, &names, &chart.draw()));
        };
        add("batch", &[("decodes", tracks.decodes), ("all jobs", tracks.jobs)], false);
        add("waiting to be let in", &[("", tracks.waiting)], false);
        add("memory", &[("in use", tracks.used), ("cached", tracks.cached)], true);
        for (name, track, share) in &tracks.wires {
            let names: &[(&str, Option<usize>)] = &[(if *share { "" } else { "jobs" }, Some(*track))];
            add(name, names, *share);
        }
        charts
    }

    fn curve(&self, track: usize, band: bool) -> Curve {
        let points = || self.gathered.tracks[track].series.points();
        Curve {
            points: points().map(|point| (point.time, point.mean)).collect(),
            band: points().filter(|_| band).map(|point| (point.time, point.low, point.high)).collect(),
            dots: false,
        }
    }
}

/// Means of every seed's run side by side.
fn over_seeds(replication: &Replication) -> Markup {
    let summaries = replication.summaries();
    let shown = summaries.iter().filter(|(name, summary)| {
        let figure = match name.part {
            Figured::Observe | Figured::Ttft => "mean",
            Figured::Slo => "share",
            _ => return false,
        };
        name.figure == figure && summary.count > 0 && (summary.min != 0.0 || summary.max != 0.0)
    });
    let rows: Vec<Vec<String>> = shown
        .map(|(name, s)| {
            let owner = match name.part {
                Figured::Ttft => format!("ttft: {}", words(&name.name)),
                Figured::Slo => format!("within the limit: {}", name.name),
                _ => name.name.clone(),
            };
            let (mean, interval) = with_interval(s.mean, s.ci);
            vec![owner, mean, interval, short(s.median), range(s)]
        })
        .collect();
    html! {
        section {
            h2 { "Over " (Seeds(replication.seeds.clone()).words()) }
            p.note {
                "Each run's mean or share, and how these differ from seed to seed. "
                "All that follows is the run of seed " (replication.seeds[0]) "."
            }
            (table(&["figure", "mean", "±95 %", "median", "range"], &rows))
        }
    }
}

fn heading(report: &Report) -> String {
    let turns = if report.turns > 0 { format!(", {}", count(report.turns, "turn")) } else { String::new() };
    format!(
        "{}, seed {} · {}{turns}, {} sessions live on average",
        span(report.end, report.warmup),
        report.seed,
        count(report.arrivals, "arrival"),
        short(report.mean_live)
    )
}

fn ttft(report: &Report) -> Markup {
    let Some(ttft) = report.ttft.as_ref().filter(|ttft| ttft.count > 0) else { return html! {} };
    let shown = || ttft.parts.iter().enumerate().filter(|(_, (_, part))| part.mean > 0.0);
    let row = |name: String, part: &TtftPart| {
        let q = |value: f64| significant(value, 3);
        let (mean, interval) = with_interval(part.mean, part.ci);
        let share = format!("{} %", significant(100.0 * part.share, 3));
        vec![name, mean, interval, share, q(part.p50), q(part.p90), q(part.p99)]
    };
    let mut rows: Vec<Vec<String>> = shown().map(|(_, (word, part))| row(words(word), part)).collect();
    rows.push(row("all".into(), &ttft.total));
    let bars: Vec<(usize, String, f64)> = shown().map(|(at, (word, part))| (at, words(word), part.share)).collect();
    html! {
        section {
            h2 { "Where the time to the first token goes" }
            p.note { (count(ttft.count, "request")) ", each instant of each in one part: the means sum to the last row." }
            (bar(&bars))
            (table(&["part", "mean", "±95 %", "share", "p50", "p90", "p99"], &rows))
        }
    }
}

/// Late requests by cause.
fn causes(bounds: &std::collections::BTreeMap<usize, u64>) -> Markup {
    let all: u64 = bounds.values().sum();
    let name = |at: usize| Part::ALL.get(at).map_or("the answer behind it".into(), |part| words(part.word()));
    let bars: Vec<(usize, String, f64)> =
        bounds.iter().map(|(&at, &number)| (at, name(at), number as f64 / all as f64)).collect();
    bar(&bars)
}

/// Shares of a whole beside each other: colour, name, share.
fn bar(shares: &[(usize, String, f64)]) -> Markup {
    let colour = |at: usize| format!("c{}", COLOUR_OF_PART.get(at).copied().unwrap_or(COLOURS.len() - 1));
    html! {
        div.bar role="img" {
            @for (at, name, share) in shares {
                i class=(colour(*at)) style={ "width:" (format!("{:.3}", 100.0 * share)) "%" } title=(name) {}
            }
        }
        div.keys {
            @for (at, name, share) in shares {
                span.key { i class=(colour(*at)) {} (name) " " b { (significant(100.0 * share, 3)) " %" } }
            }
        }
    }
}

/// Colours of the parts in their order, and of the answer behind the first token: neighbours
/// are told apart.
const COLOUR_OF_PART: [usize; 10] = [7, 1, 0, 6, 5, 2, 3, 4, 7, 4];

fn cdf(distribution: &Distribution, limit: Option<f64>) -> String {
    // The last thousandth would squeeze the rest.
    let (low, high) = (distribution.quantile(0.001), distribution.quantile(0.999));
    let median = distribution.quantile(0.5);
    let high = limit
        .map_or(high, |limit| high.max(limit * 1.05))
        .min(distribution.greatest().max(limit.unwrap_or(high) * 1.05));
    let log = low > 0.0 && high > 20.0 * median;
    // From 0, unless all would stand at the far end.
    let from = if log || low > 0.5 * high { low } else { low.min(0.0) };
    let mut points: Vec<(f64, f64)> = vec![(from, 0.0)];
    let mut share = 0.0;
    for (value, below) in distribution.steps() {
        if value > high {
            break;
        }
        // Steps, not slopes: many values are there often.
        let value = value.max(from);
        points.push((value, share));
        points.push((value, below));
        share = below;
    }
    points.push((high, share));
    let chart = Chart {
        x: if log { Axis::Log(from, high) } else { Axis::Linear(from, high) },
        from_zero: true,
        top: Some(1.0),
        percent: true,
        curves: vec![Curve { points, band: Vec::new(), dots: false }],
        limit,
    };
    chart.draw()
}

fn gauges(report: &Report) -> Markup {
    let rows: Vec<Vec<String>> = report.gauges.iter().map(gauge_row).collect();
    html! {
        @if !rows.is_empty() {
            section {
                h2 { "Gauges" }
                (table(&["gauge", "mean", "±95 %", "min", "max"], &rows))
            }
        }
    }
}

fn constants(program: &Program) -> Markup {
    let rows: Vec<Vec<String>> =
        program.constants.iter().map(|c| vec![c.name.clone(), significant(c.value.0, 9)]).collect();
    html! {
        @if !rows.is_empty() {
            section {
                h2 { "Constants" }
                details {
                    summary { (count(rows.len() as u64, "constant")) " of the program, as they were in this run" }
                    (table(&["constant", "value"], &rows))
                }
            }
        }
    }
}

fn words(word: &str) -> String {
    word.replace('_', " ")
}

fn short(value: f64) -> String {
    significant(value, 4)
}
