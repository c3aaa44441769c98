//! One program, many seeds: the same figure of every run, side by side.
//!
//! [`Figures`] flattens a report to numbers with names, so that tables over seeds,
//! sweeps and files need not know a report's shape. [`in_order`] runs tasks on
//! several threads; [`replicate`] runs seeds with it and [`Summary`] says how sure
//! their figures are.
//!
//! ```text
//!   seeds ──in_order──▶ one Figures a seed ──by name──▶ values ──▶ Summary
//! ```
//!
//! # Invariants
//!
//! - Results stand in the order of the tasks, whatever the number of threads.
//! - Tasks start in order. So when one fails, all before it have started, and the
//!   error told is that of the first task that fails, on every machine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::report::{Note, NoteKind, Report, member_name};

/// Part of a report a figure stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The run as a whole.
    Run,
    /// An observation.
    Observe,
    /// A gauge.
    Gauge,
    /// A member of a stage.
    Stage,
    /// A member of a pool.
    Pool,
    /// The time to the first token; the name is the part's, or `total`.
    Ttft,
    /// `--slo`; the name is the observation's, or `joint`.
    Slo,
}

impl Part {
    const ALL: [Part; 7] = [Part::Run, Part::Observe, Part::Gauge, Part::Stage, Part::Pool, Part::Ttft, Part::Slo];

    /// As files and prefixes of columns write it.
    pub fn word(self) -> &'static str {
        match self {
            Part::Run => "run",
            Part::Observe => "observe",
            Part::Gauge => "gauge",
            Part::Stage => "stage",
            Part::Pool => "pool",
            Part::Ttft => "ttft",
            Part::Slo => "slo",
        }
    }

    /// The part a word names.
    pub fn from_word(word: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.word() == word)
    }
}

/// Which figure: `pool P.kv[0] mean_used`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureName {
    /// Where it stands.
    pub part: Part,
    /// Of what; empty for the run's own.
    pub name: String,
    /// Member, `None` for a scalar.
    pub index: Option<u32>,
    /// The report's JSON name.
    pub figure: String,
}

impl FigureName {
    /// `P.kv[0]`, `ttft`.
    pub fn owner(&self) -> String {
        member_name(&self.name, self.index)
    }

    fn is_called(&self, column: &str) -> bool {
        let short = self.figure.strip_prefix("mean_");
        let ends =
            |rest: &str| rest.strip_prefix('.').is_some_and(|figure| figure == self.figure || Some(figure) == short);
        if self.part == Part::Run {
            return column == self.figure || Some(column) == short;
        }
        let main = match self.part {
            Part::Observe | Part::Gauge | Part::Ttft => "mean",
            _ => "share",
        };
        let of = |column: &str, owner: &str| {
            column.strip_prefix(owner).is_some_and(|rest| ends(rest) || (rest.is_empty() && self.figure == main))
        };
        if self.part == Part::Ttft {
            // Parts have everyday names: they are said with the word before them.
            return column.strip_prefix("ttft.").is_some_and(|column| of(column, &self.name));
        }
        of(column, &self.name) || (self.index.is_some() && of(column, &self.owner()))
    }
}

/// A report as numbers with names, in the report's order.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// What the values are.
    pub names: Vec<FigureName>,
    /// One a name; NaN where the figure does not exist.
    pub values: Vec<f64>,
    /// The report's remarks, as sentences.
    pub notes: Vec<String>,
    /// A session was preempted for ever.
    pub stuck: bool,
}

impl From<&Report> for Figures {
    fn from(report: &Report) -> Self {
        let mut all = Figures {
            notes: report.notes.iter().map(|Note { text, .. }| text.clone()).collect(),
            stuck: report.notes.iter().any(|note| note.kind == NoteKind::Stuck)
                || report.pools.iter().any(|pool| pool.stuck > 0),
            ..Figures::default()
        };
        let mut add = |part: Part, name: &str, index: Option<u32>, figures: &[(&str, f64)]| {
            for &(figure, value) in figures {
                all.names.push(FigureName { part, name: name.to_owned(), index, figure: figure.to_owned() });
                all.values.push(value);
            }
        };
        let flag = |set: bool| f64::from(u8::from(set));
        add(
            Part::Run,
            "",
            None,
            &[
                ("end", report.end),
                ("events", report.events as f64),
                ("arrivals", report.arrivals as f64),
                ("ended", report.ended as f64),
                ("turns", report.turns as f64),
                ("mean_live", report.mean_live),
            ],
        );
        for o in &report.observes {
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
            add(Part::Observe, &o.name, None, &figures);
        }
        for g in &report.gauges {
            let figures = [("mean", g.mean), ("ci", g.ci), ("min", g.min), ("max", g.max)];
            add(Part::Gauge, &g.name, None, &figures);
        }
        for s in &report.stages {
            let figures = [
                ("mean_number", s.mean_number),
                ("utilization", s.utilization),
                ("completed", s.completed as f64),
                ("throughput", s.throughput),
                ("mean_wait", s.mean_wait),
                ("mean_service", s.mean_service),
                ("iterations", s.iterations as f64),
                ("prefill_only", s.prefill_only),
                ("decode_only", s.decode_only),
                ("mixed", s.mixed),
                ("mean_decodes", s.mean_decodes),
                ("mean_decode_batch", s.mean_decode_batch),
                ("mean_decode_step", s.mean_decode_step),
                ("mean_itl", s.mean_itl),
                ("itl_p50", s.itl_p50),
                ("itl_p99", s.itl_p99),
                ("idle_with_work", flag(s.idle_with_work)),
            ];
            // Only a step stage iterates; for the others these would be walls of zeros.
            let figures = if s.kind == "step" { &figures[..] } else { &figures[..6] };
            add(Part::Stage, &s.name, s.index, figures);
        }
        for p in &report.pools {
            let figures = [
                ("mean_used", p.mean_used),
                ("mean_cached", p.mean_cached),
                ("mean_queue", p.mean_queue),
                ("mean_holders", p.mean_holders),
                ("mean_leased", p.mean_leased),
                ("mean_wait", p.mean_wait),
                ("admissions", p.admissions as f64),
                ("evicted_entries", p.evicted_entries as f64),
                ("evicted_units", p.evicted_units),
                ("preemptions", p.preemptions as f64),
                ("spills", p.spills as f64),
                ("rejected", p.rejected as f64),
                ("stuck", p.stuck as f64),
                ("leases_expired", p.leases_expired as f64),
                ("late_releases", p.late_releases as f64),
                ("reads_failed", p.reads_failed as f64),
                ("over_cap", p.over_cap.as_ref().map_or(0.0, |waiter| waiter.need)),
                ("left", p.left),
                ("in_use_at_end", p.in_use_at_end),
            ];
            add(Part::Pool, &p.name, p.index, &figures);
        }
        if let Some(ttft) = &report.ttft {
            let total = [("total", ttft.total)];
            for (word, part) in ttft.parts.iter().chain(&total) {
                let figures = [
                    ("mean", part.mean),
                    ("ci", part.ci),
                    ("share", part.share),
                    ("p50", part.p50),
                    ("p90", part.p90),
                    ("p95", part.p95),
                    ("p99", part.p99),
                ];
                add(Part::Ttft, word, None, &figures);
            }
            add(Part::Ttft, "total", None, &[("count", ttft.count as f64)]);
        }
        if let Some(slo) = &report.slo {
            for limit in &slo.each {
                let figures = [("limit", limit.limit), ("share", limit.share), ("count", limit.count as f64)];
                add(Part::Slo, &limit.name, None, &figures);
            }
            add(Part::Slo, "joint", None, &[("share", slo.joint), ("count", slo.joint_count as f64)]);
        }
        all
    }
}

impl Figures {
    /// Places of the figures a column names; several are the members of a family.
    ///
    /// `ttft` (the mean), `ttft.p99`, `P.kv.mean_used` or `P.kv.used` (all members),
    /// `P.kv[0].used`, `mean_live`; `pool:kv.wait` and the like where a pool and a
    /// stage share a name.
    ///
    /// # Errors
    ///
    /// One sentence: no such figure, or a pool's and a stage's.
    pub fn places(&self, column: &str) -> Result<Vec<usize>, String> {
        let (part, rest) = match column.split_once(':') {
            Some((word, rest)) => match Part::from_word(word) {
                Some(part) => (Some(part), rest),
                None => return Err(format!("no figure is named `{column}`")),
            },
            None => (None, column),
        };
        let mut found: Vec<usize> = Vec::new();
        for (place, name) in self.names.iter().enumerate() {
            if part.is_none_or(|part| part == name.part) && name.is_called(rest) {
                found.push(place);
            }
        }
        let parts: Vec<Part> = {
            let mut parts: Vec<Part> = found.iter().map(|&at| self.names[at].part).collect();
            parts.dedup();
            parts
        };
        match parts[..] {
            [] => Err(format!("no figure is named `{column}`")),
            [_] => Ok(found),
            // What the program itself names goes before what every run has.
            _ if part.is_none() && !parts.contains(&Part::Pool) => {
                let wanted = parts.iter().copied().find(|&part| part != Part::Run).unwrap_or(Part::Run);
                found.retain(|&at| self.names[at].part == wanted);
                Ok(found)
            }
            _ => {
                let ways: Vec<String> = parts.iter().map(|part| format!("`{}:{rest}`", part.word())).collect();
                Err(format!("`{column}` names several figures: write {}", ways.join(" or ")))
            }
        }
    }

    /// The mean over the figures at these places that exist; NaN when none does.
    pub fn mean(&self, places: &[usize]) -> f64 {
        let values = places.iter().map(|&at| self.values[at]).filter(|value| !value.is_nan());
        let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
        sum / f64::from(count)
    }
}

/// One figure over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Seeds where the figure exists; the others are left out.
    pub count: usize,
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// Mean over the seeds.
    pub mean: f64,
    /// Half-width of the two-sided 95 % Student interval of the mean; NaN below two seeds.
    pub ci: f64,
}

impl Summary {
    /// Summarises one value a seed.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return Self { count, median: f64::NAN, min: f64::NAN, max: f64::NAN, mean: f64::NAN, ci: f64::NAN };
        }
        let (low, high) = (sorted[(count - 1) / 2], sorted[count / 2]);
        let median = if low == high { low } else { low + (high - low) / 2.0 };
        let mean = if sorted[0] == sorted[count - 1] { low } else { sorted.iter().sum::<f64>() / count as f64 };
        let ci = if count < 2 {
            f64::NAN
        } else {
            let freedom = (count - 1) as f64;
            let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
            let t = StudentsT::new(0.0, 1.0, freedom).expect("one seed or more of freedom").inverse_cdf(0.975);
            t * (squares / freedom / count as f64).sqrt()
        };
        Self { count, median, min: sorted[0], max: sorted[count - 1], mean, ci }
    }
}

/// The runs of one program, one a seed.
#[derive(Clone, Debug)]
pub struct Replication {
    /// In the order asked for.
    pub seeds: Vec<u64>,
    /// One a seed.
    pub runs: Vec<Figures>,
}

impl Replication {
    /// Every figure with its summary, in the report's order.
    pub fn summaries(&self) -> Vec<(&FigureName, Summary)> {
        let Some(first) = self.runs.first() else { return Vec::new() };
        let summary = |place: usize| Summary::of(self.runs.iter().map(|run| run.values[place]));
        first.names.iter().enumerate().map(|(place, name)| (name, summary(place))).collect()
    }
}

/// A seed's error.
#[derive(Clone, Debug, PartialEq)]
pub struct SeedError<E> {
    /// Whose.
    pub seed: u64,
    /// What.
    pub error: E,
}

/// Runs one program with many seeds on `jobs` threads.
///
/// # Errors
///
/// The error of the first seed, in order, that has one.
pub fn replicate<E: Send>(
    seeds: &[u64],
    jobs: usize,
    run: impl Fn(u64) -> Result<Figures, E> + Sync,
) -> Result<Replication, SeedError<E>> {
    match in_order(seeds.len(), jobs, |task| run(seeds[task]), &mut |_, _| true) {
        Ok(runs) => {
            debug_assert!(runs.iter().all(|run| run.names == runs[0].names), "one program, one shape");
            Ok(Replication { seeds: seeds.to_vec(), runs })
        }
        Err(Stopped::Failed { task, error }) => Err(SeedError { seed: seeds[task], error }),
        Err(Stopped::Asked) => unreachable!("nobody asks"),
    }
}

/// Why [`in_order`] has no results.
#[derive(Clone, Debug, PartialEq)]
pub enum Stopped<E> {
    /// A task failed.
    Failed {
        /// The first of those that fail.
        task: usize,
        /// Its error.
        error: E,
    },
    /// `done` answered no.
    Asked,
}

/// Runs tasks 0 … `count` - 1 on `jobs` threads and answers their results in that order.
///
/// `done` is told each result on the caller's thread as it comes, and answers
/// whether to go on.
///
/// # Errors
///
/// [`Stopped`]; tasks that have started are finished first.
pub fn in_order<T: Send, E: Send>(
    count: usize,
    jobs: usize,
    run: impl Fn(usize) -> Result<T, E> + Sync,
    done: &mut dyn FnMut(usize, &T) -> bool,
) -> Result<Vec<T>, Stopped<E>> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let mut failed: Option<(usize, E)> = None;
    let mut asked = false;
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        for _ in 0..jobs.clamp(1, count.max(1)) {
            let (send, next, stop, run) = (send.clone(), &next, &stop, &run);
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let task = next.fetch_add(1, Ordering::AcqRel);
                    if task >= count {
                        return;
                    }
                    let result = run(task);
                    if result.is_err() {
                        stop.store(true, Ordering::Release);
                    }
                    if send.send((task, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (task, result) in receive {
            match result {
                Ok(result) => {
                    if !asked && !done(task, &result) {
                        asked = true;
                        stop.store(true, Ordering::Release);
                    }
                    results[task] = Some(result);
                }
                Err(error) if failed.as_ref().is_none_or(|(first, _)| task < *first) => failed = Some((task, error)),
                Err(_) => {}
            }
        }
    });
    if let Some((task, error)) = failed {
        return Err(Stopped::Failed { task, error });
    }
    if asked {
        return Err(Stopped::Asked);
    }
    Ok(results.into_iter().map(|result| result.expect("every task has run")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(part: Part, name: &str, index: Option<u32>, figure: &str) -> FigureName {
        FigureName { part, name: name.into(), index, figure: figure.into() }
    }

    fn figures(rows: Vec<(FigureName, f64)>) -> Figures {
        let (names, values) = rows.into_iter().unzip();
        Figures { names, values, ..Figures::default() }
    }

    #[test]
    fn a_summary_of_five_seeds_is_the_textbooks() {
        let s = Summary::of([3.0, 1.0, 4.0, 2.0, 5.0]);
        // t(0.975, 4) = 2.776445, sd = sqrt(2.5).
        assert!((s.ci - 2.776_445_105 * (2.5f64 / 5.0).sqrt()).abs() < 1e-8, "{}", s.ci);
        assert_eq!((s.count, s.median, s.min, s.max, s.mean), (5, 3.0, 1.0, 5.0, 3.0));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Summary::of([4.0, 1.0, 2.0, 9.0]).median, 3.0);
    }

    #[test]
    fn a_figure_that_does_not_exist_is_left_out() {
        let s = Summary::of([f64::NAN, 7.0]);
        assert_eq!((s.count, s.median, s.mean), (1, 7.0, 7.0));
        assert!(s.ci.is_nan());
        assert_eq!(Summary::of([f64::NAN]).count, 0);
    }

    #[test]
    fn equal_values_have_no_width() {
        let s = Summary::of([0.1; 7]);
        assert_eq!((s.mean, s.ci), (0.1, 0.0));
        assert_eq!(Summary::of([f64::INFINITY; 2]).median, f64::INFINITY);
    }

    #[test]
    fn results_stand_in_order_whatever_the_number_of_threads() {
        for jobs in [0, 1, 3, 64] {
            let mut told = 0;
            let run = |task: usize| {
                // Later tasks are quicker, so they finish first.
                thread::sleep(std::time::Duration::from_micros(300 - 10 * task as u64));
                Ok::<_, ()>(task * task)
            };
            let results = in_order(20, jobs, run, &mut |_, _| {
                told += 1;
                true
            });
            assert_eq!(results.unwrap(), (0..20).map(|t| t * t).collect::<Vec<_>>());
            assert_eq!(told, 20);
        }
        assert!(in_order(0, 4, |_| Ok::<u8, ()>(0), &mut |_, _| true).unwrap().is_empty());
    }

    #[test]
    fn the_first_seed_that_fails_is_named() {
        for jobs in [1, 2, 8] {
            let run = |seed: u64| match seed {
                30 => {
                    thread::sleep(std::time::Duration::from_millis(2));
                    Err("slow trouble")
                }
                40 | 50 => Err("quick trouble"),
                _ => Ok(Figures::default()),
            };
            let error = replicate(&[10, 20, 30, 40, 50], jobs, run).unwrap_err();
            assert_eq!(error, SeedError { seed: 30, error: "slow trouble" });
        }
    }

    #[test]
    fn the_caller_may_stop() {
        let answer = in_order(1000, 2, Ok::<_, ()>, &mut |task, _| task < 3);
        assert_eq!(answer, Err(Stopped::Asked));
    }

    #[test]
    fn a_column_names_a_member_a_family_or_an_observation() {
        let f = figures(vec![
            (name(Part::Run, "", None, "mean_live"), 9.0),
            (name(Part::Run, "", None, "turns"), 8.0),
            (name(Part::Observe, "ttft", None, "mean"), 1.0),
            (name(Part::Observe, "ttft", None, "p99"), 2.0),
            (name(Part::Observe, "turns", None, "mean"), 7.0),
            (name(Part::Stage, "kv", None, "mean_wait"), 6.0),
            (name(Part::Pool, "P.kv", Some(0), "mean_used"), 3.0),
            (name(Part::Pool, "P.kv", Some(1), "mean_used"), 5.0),
            (name(Part::Pool, "kv", None, "mean_wait"), 4.0),
        ]);
        let value = |column: &str| f.places(column).map(|places| f.mean(&places));
        assert_eq!(value("ttft"), Ok(1.0));
        assert_eq!(value("ttft.p99"), Ok(2.0));
        assert_eq!(value("P.kv.mean_used"), Ok(4.0));
        assert_eq!(value("P.kv.used"), Ok(4.0));
        assert_eq!(value("P.kv[1].used"), Ok(5.0));
        assert_eq!(value("mean_live"), Ok(9.0));
        assert_eq!(value("turns"), Ok(7.0));
        assert_eq!(value("run:turns"), Ok(8.0));
        assert_eq!(value("pool:kv.wait"), Ok(4.0));
        assert_eq!(
            value("kv.wait"),
            Err("`kv.wait` names several figures: write `stage:kv.wait` or `pool:kv.wait`".into())
        );
        assert_eq!(value("tft"), Err("no figure is named `tft`".into()));
        assert_eq!(value("P.kv[2].used"), Err("no figure is named `P.kv[2].used`".into()));
        assert_eq!(value("P.kv"), Err("no figure is named `P.kv`".into()));
        assert_eq!(value("x:ttft"), Err("no figure is named `x:ttft`".into()));
    }
}
