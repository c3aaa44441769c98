//! `serq run`: simulate and report.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use serq_sim::record::{Both, Recorder};
use serq_sim::replicate::{Figures, SeedError, replicate};
use serq_sim::trace::TraceFile;
use serq_sim::{Options, Outcome, RunError, simulate_recorded};

use super::refuse_stuck;
use crate::failure::Failure;
use crate::flags::{JobFlags, LimitFlags, ProgramFlags, limit, not_negative};
use crate::page::{self, RunPage};
use crate::precision::{Refusal, Target, replicate_until};
use crate::program_file::{Linked, ProgramFile};
use crate::report::{lines, over_seeds, text};
use crate::seeds::Seeds;
use crate::timeline::{self, Span, Timeline};
use crate::transient::{self, Halves};
use crate::watch::Watch;
use crate::{dump, number, output, shortness};

/// Seconds of real time a precision may take where --max-wall does not say. By judgement: long enough
/// for most examples at 1 %, short enough to wait for.
const PRECISION_WALL: f64 = 60.0;

/// Simulate a program and report its figures
#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    program: ProgramFlags,

    /// Replace the program's seed
    #[arg(long, value_name = "SEED", conflicts_with = "seeds")]
    seed: Option<u64>,

    /// Run many seeds and report median, range and interval: `1..20` (both ends) or `1,5,9`
    #[arg(long, value_name = "SEEDS")]
    seeds: Option<Seeds>,

    /// Run as many seeds as it takes to know a figure so well: `ttft=1%` of its mean, `ttft.p99=0.002`;
    /// may be repeated. At most --max-wall seconds, 60 if not given
    #[arg(long, value_name = "FIGURE=WIDTH", conflicts_with_all = ["seeds", "facts", "dump", "timeline"])]
    precision: Vec<Target>,

    #[command(flatten)]
    jobs: JobFlags,

    /// The report as one JSON object
    #[arg(long, conflicts_with_all = ["csv", "facts"])]
    json: bool,

    /// The figures as CSV, one a row
    #[arg(long, conflicts_with = "facts")]
    csv: bool,

    /// The figures one fact a line, in fixed decimals and order, for tests and diffs
    #[arg(long, conflicts_with = "seeds")]
    facts: bool,

    /// Write every sample and every change of a gauge as CSV files into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "seeds")]
    dump: Option<PathBuf>,

    /// Report the share of samples of an observation at or below a limit; may be repeated
    #[arg(long, value_name = "NAME=LIMIT", value_parser = limit)]
    slo: Vec<(String, f64)>,

    /// Write what happens, as it happens: `out.json` (or `.json.gz`) for ui.perfetto.dev, `out.txt` in words
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    timeline: Option<PathBuf>,

    /// Leave out of the timeline what ended before this time
    #[arg(long, value_name = "TIME", requires = "timeline", value_parser = not_negative, allow_negative_numbers = true)]
    timeline_from: Option<f64>,

    /// Leave out of the timeline what began after this time
    #[arg(long, value_name = "TIME", requires = "timeline", value_parser = not_negative, allow_negative_numbers = true)]
    timeline_to: Option<f64>,

    /// Also draw it: one HTML page with the deployment, how times are spread, and every instance over time
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// A row for every member of a family, however many there are
    #[arg(long)]
    all_members: bool,

    #[command(flatten)]
    limits: LimitFlags,
}

impl Run {
    /// Runs and prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let span = self.timeline_span()?;
        let file = ProgramFile::open(&self.program)?;
        let settings = &self.program.settings;
        let linked = file.link(settings, &[], self.seed)?;
        self.check_limits(&linked)?;
        let trace = file.trace(&linked.program, settings)?;
        file.warn(&linked);
        if let Some(folder) = &self.dump {
            dump::prepare(folder)?;
        }
        let options = Options { record: self.dump.is_some(), slo: self.slo.clone(), ..self.limits.options() };
        let mut timeline = match &self.timeline {
            Some(path) => Some(Timeline::create(path, &linked.program, span)?),
            None => None,
        };
        if let Some(path) = &self.report {
            page::prepare(path)?;
        }
        let mut page = self.report.as_ref().map(|_| RunPage::new(&linked.program, &self.slo));
        let max_wall = self.limits.max_wall.or((!self.precision.is_empty()).then_some(PRECISION_WALL));
        let watch = Watch::start(self.seeds.as_ref().map_or(1, |seeds| seeds.0.len()), max_wall)?;
        let horizon = linked.program.run.horizon.0;
        if self.seeds.is_some() || !self.precision.is_empty() {
            return self.run_seeds(&file, &linked, trace.as_ref(), &options, &watch, page);
        }
        let (recorder, pen) = timeline.as_mut().map(Timeline::parts).unzip();
        let mut look = watch.run(horizon);
        let mut goes_on = |time: f64, events: u64| {
            // A file that can't be written on ends the run; the reason is told below.
            look(time, events) && !pen.as_ref().is_some_and(timeline::Pen::is_broken)
        };
        let mut both = Both(recorder, page.as_mut().map(RunPage::recorder));
        let recorder = both.is_any().then_some(&mut both as &mut dyn Recorder);
        let outcome = simulate_recorded(&linked.program, trace.as_ref(), &options, recorder, &mut goes_on);
        watch.finish();
        if let (Some(timeline), Some(path)) = (timeline, &self.timeline) {
            timeline.finish(path)?;
        }
        let mut outcome = outcome.map_err(|error| match error.interrupted {
            true => watch.stopped(&format!("at time {}", number::exact(error.time))),
            false => file.refuse_run(&linked.sources, &error, ""),
        })?;
        outcome.report.notes.extend(shortness::note(&linked.program, &outcome.report));
        if let (Some(page), Some(path)) = (&page, &self.report) {
            page::write(path, &page.draw(&outcome.report, None))?;
        }
        self.print(&linked, &outcome, watch.seconds())
    }

    /// Many seeds: those given, or as many as a precision takes.
    fn run_seeds(
        &self,
        file: &ProgramFile,
        linked: &Linked,
        trace: Option<&TraceFile>,
        options: &Options,
        watch: &Watch,
        mut page: Option<RunPage>,
    ) -> Result<(), Failure> {
        let horizon = linked.program.run.horizon.0;
        let halves = Mutex::new(BTreeMap::new());
        let run = |seed: u64| {
            let mut program = linked.program.clone();
            program.run.seed = seed;
            let mut own = Halves::new(&program);
            let outcome = simulate_recorded(&program, trace, options, Some(&mut own), &mut watch.run(horizon))?;
            halves.lock().unwrap_or_else(PoisonError::into_inner).insert(seed, own);
            Ok::<_, RunError>(Figures::from(&outcome.report))
        };
        let failed = |SeedError { seed, error }: SeedError<RunError>| match error.interrupted {
            true => watch.stopped(&format!("at seed {seed}")),
            false => file.refuse_run(&linked.sources, &error, &format!("seed {seed}")),
        };
        let (replication, looks, short) = match &self.seeds {
            Some(seeds) => {
                let replication = replicate(&seeds.0, self.jobs.count(), run);
                watch.finish();
                (replication.map_err(failed)?, Vec::new(), None)
            }
            None => {
                let first = linked.program.run.seed;
                let precise = replicate_until(&self.precision, first, self.jobs.count(), watch, run);
                watch.finish();
                let precise = precise.map_err(|refusal| match refusal {
                    Refusal::Target(sentence) => Failure::Failed(sentence),
                    Refusal::Run(error) => failed(error),
                    Refusal::Stopped { seeds } => {
                        watch.stopped(&format!("{} done", number::count(seeds as u64, "seed")))
                    }
                })?;
                (precise.replication, precise.looks, precise.short)
            }
        };
        let mut halves = halves.into_inner().unwrap_or_else(PoisonError::into_inner);
        let halves: Vec<Halves> = replication.seeds.iter().filter_map(|seed| halves.remove(seed)).collect();
        let remarks = transient::notes(&linked.program, &halves);
        if let (Some(page), Some(path)) = (&mut page, &self.report) {
            // The first seed's run once more, this time with somebody who looks.
            let mut program = linked.program.clone();
            program.run.seed = replication.seeds[0];
            let watched = Some(page.recorder());
            let mut outcome = simulate_recorded(&program, trace, options, watched, &mut |_, _| true)
                .map_err(|error| file.refuse_run(&linked.sources, &error, ""))?;
            outcome.report.notes.extend(shortness::note(&program, &outcome.report));
            page::write(path, &page.draw(&outcome.report, Some(&replication)))?;
        }
        let report = over_seeds::Report {
            program: &linked.program,
            replication: &replication,
            precision: &looks,
            remarks: &remarks,
        };
        output::print(&if self.json {
            report.json()
        } else if self.csv {
            report.csv()
        } else {
            report.text(output::width(), self.all_members)
        })?;
        refuse_stuck(&replication.runs)?;
        short.map_or(Ok(()), |sentence| Err(Failure::Failed(sentence)))
    }

    /// The part of the run a timeline is written of.
    fn timeline_span(&self) -> Result<Span, Failure> {
        if let Some(path) = &self.timeline {
            timeline::form(path)?;
        }
        let span = Span { from: self.timeline_from.unwrap_or(0.0), to: self.timeline_to.unwrap_or(f64::INFINITY) };
        if span.from > span.to {
            let Span { from, to } = span;
            return Err(Failure::Usage(format!("--timeline-from {from} must not be above --timeline-to {to}")));
        }
        Ok(span)
    }

    fn print(&self, linked: &Linked, outcome: &Outcome, seconds: f64) -> Result<(), Failure> {
        if let Some(folder) = &self.dump {
            dump::write(folder, &linked.program, outcome)?;
        }
        let report = &outcome.report;
        output::print(&if self.json {
            serde_json::to_string_pretty(report).expect("a report has only JSON's types") + "\n"
        } else if self.csv {
            lines::csv(report)
        } else if self.facts {
            lines::facts(report)
        } else {
            // Real time is not the run's: into a pipe, the same run prints the same bytes.
            let seconds = output::is_terminal().then_some(seconds);
            text::draw(report, output::width(), self.all_members, seconds)
        })?;
        if Figures::from(report).stuck {
            let stuck: u64 = report.pools.iter().map(|pool| pool.stuck).sum();
            return Err(Failure::Failed(format!(
                "{} stuck",
                if stuck == 1 { "a session is".into() } else { format!("{stuck} sessions are") }
            )));
        }
        Ok(())
    }

    /// A limit on what the program does not observe is a misspelling.
    fn check_limits(&self, linked: &Linked) -> Result<(), Failure> {
        for (name, _) in &self.slo {
            if !linked.program.observes.contains(name) {
                let all = linked.program.observes.join(", ");
                let all = if all.is_empty() { "nothing".into() } else { all };
                return Err(Failure::Failed(format!(
                    "--slo {name}: no observation is named so; the program observes {all}"
                )));
            }
        }
        Ok(())
    }
}
