//! What a run measures: samples, gauges, and every stage's and pool's averages.
//!
//! State is read once per instant, after its last event and the iteration starts, so
//! intermediate values of an instant leave no trace; counts and waits come with the
//! kernel's actions. Everything restarts at the end of the warm-up but whole-run
//! counters.

use serq_ir as ir;
use serq_kernel::{Kernel, PoolState, StageState};

use crate::report;
use crate::samples::{EXACT_MAX, Samples};
use crate::simulation::{Options, Outcome, Sample};
use crate::statistics::{BATCHES, Doubling, Gaps, Runs, TimeAverage, Windows, half_width, trend};

/// Everything measured so far.
#[derive(Debug)]
pub(crate) struct Measurements {
    pub(crate) warmup: f64,
    /// The warm-up is over.
    pub(crate) counting: bool,
    record: bool,
    /// Gauges keep all change points they need.
    exact: bool,
    /// Sessions and turns of samples are needed.
    keyed: bool,
    samples: Vec<Samples>,
    keyed_samples: Vec<Vec<Sample>>,
    gauges: Vec<GaugeTrack>,
    stages: Vec<StageTrack>,
    pools: Vec<PoolTrack>,
    live: TimeAverage,
    pub(crate) turns: u64,
    pub(crate) ended: u64,
}

#[derive(Debug)]
struct GaugeTrack {
    value: f64,
    since: f64,
    /// Least and greatest value held for a positive time after warm-up.
    range: (f64, f64),
    windows: Option<Windows>,
    /// What the windows are cut from, where the end is not known before.
    later: Option<Later>,
    /// All change points, where they are asked for.
    points: Vec<(f64, f64)>,
}

/// A gauge's values until its windows can be cut.
#[derive(Debug)]
enum Later {
    /// Exactly: all change points.
    Points(Vec<(f64, f64)>),
    Doubling(Doubling),
}

#[derive(Debug, Default)]
struct StageTrack {
    number: TimeAverage,
    busy: TimeAverage,
    load: TimeAverage,
    /// Whether its iteration prefills, and how many decode in it: what the next four follow.
    batch: (bool, u32),
    prefill_only: TimeAverage,
    decode_only: TimeAverage,
    mixed: TimeAverage,
    decodes: TimeAverage,
    queue: Option<Windows>,
    completed: u64,
    wait: f64,
    service: f64,
    decode_steps: Runs,
    decode_jobs: u64,
    gaps: Gaps,
}

#[derive(Debug, Default)]
struct PoolTrack {
    used: TimeAverage,
    cached: TimeAverage,
    queue: TimeAverage,
    holders: TimeAverage,
    leased: TimeAverage,
    windows: Option<Windows>,
    admitted: u64,
    wait: f64,
}

impl Measurements {
    pub(crate) fn new(program: &ir::Program, kernel: &Kernel<'_>, options: &Options) -> Self {
        let (warmup, horizon) = (program.run.warmup.0, program.run.horizon.0);
        // With `arrivals` the end is not known before; windows are cut afterwards then.
        let known_end = program.run.arrivals.is_none();
        let windows = || known_end.then(|| Windows::new(warmup, horizon, 0.0));
        let observes = program.observes.len();
        Self {
            warmup,
            counting: warmup <= 0.0,
            record: options.record,
            exact: options.exact,
            keyed: options.record || !options.slo.is_empty(),
            samples: (0..observes).map(|_| Samples::new(options.exact)).collect(),
            keyed_samples: vec![Vec::new(); observes],
            gauges: program
                .gauges
                .iter()
                .map(|_| GaugeTrack {
                    value: f64::NAN,
                    since: 0.0,
                    range: (f64::INFINITY, f64::NEG_INFINITY),
                    windows: windows(),
                    later: (!known_end).then(|| Later::Points(Vec::new())),
                    points: Vec::new(),
                })
                .collect(),
            stages: (0..kernel.stages()).map(|_| StageTrack { queue: windows(), ..StageTrack::default() }).collect(),
            pools: (0..kernel.pools()).map(|_| PoolTrack { windows: windows(), ..PoolTrack::default() }).collect(),
            live: TimeAverage::default(),
            turns: 0,
            ended: 0,
        }
    }

    // ---- actions

    pub(crate) fn sample(&mut self, time: f64, observe: u32, session: u64, turn: f64, value: f64) {
        if self.counting {
            self.samples[observe as usize].push(value);
            if self.keyed {
                self.keyed_samples[observe as usize].push(Sample { time, session, turn, value });
            }
        }
    }

    pub(crate) fn turned(&mut self) {
        self.turns += u64::from(self.counting);
    }

    pub(crate) fn session_ended(&mut self) {
        self.ended += u64::from(self.counting);
    }

    pub(crate) fn job_ended(&mut self, stage: u32, wait: f64, service: f64) {
        if self.counting {
            let stage = &mut self.stages[stage as usize];
            stage.completed += 1;
            stage.wait += wait;
            stage.service += service;
        }
    }

    pub(crate) fn admitted(&mut self, pool: u32, wait: f64) {
        if self.counting {
            let pool = &mut self.pools[pool as usize];
            pool.admitted += 1;
            pool.wait += wait;
        }
    }

    /// So many units of a pool are leased from now on.
    pub(crate) fn leased(&mut self, now: f64, pool: u32, units: f64) {
        self.pools[pool as usize].leased.set(now, units);
    }

    #[inline]
    pub(crate) fn step_started(&mut self, stage: u32, cost: f64, decoders: u32) {
        if self.counting && decoders > 0 {
            self.stages[stage as usize].steps_started(cost, decoders, 1);
        }
    }

    #[inline]
    pub(crate) fn steps_leapt(&mut self, stage: u32, cost: f64, decoders: u32, steps: u64, tokens: u64) {
        if self.counting {
            let stage = &mut self.stages[stage as usize];
            if steps > 0 {
                stage.steps_started(cost, decoders, steps);
            }
            if tokens > 0 {
                stage.gaps.add(cost, tokens);
            }
        }
    }

    pub(crate) fn tokens(&mut self, stage: u32, gap: f64, count: u64) {
        if self.counting {
            self.stages[stage as usize].gaps.add(gap, count);
        }
    }

    // ---- state, once per instant

    #[inline]
    pub(crate) fn pool(&mut self, now: f64, pool: u32, state: PoolState) {
        let track = &mut self.pools[pool as usize];
        track.used.set(now, state.used);
        track.cached.set(now, state.cached);
        track.holders.set(now, f64::from(state.holders));
        if track.queue.set(now, f64::from(state.queue))
            && let Some(windows) = &mut track.windows
        {
            windows.set(now, f64::from(state.queue));
        }
    }

    #[inline]
    pub(crate) fn stage(&mut self, now: f64, stage: u32, state: StageState) {
        let track = &mut self.stages[stage as usize];
        if track.number.set(now, f64::from(state.number)) {
            track.busy.set(now, f64::from(u8::from(state.number > 0)));
            if let Some(windows) = &mut track.queue {
                windows.set(now, f64::from(state.number));
            }
        }
        track.load.set(now, state.load);
        let batch = (state.prefills, state.decoders);
        if std::mem::replace(&mut track.batch, batch) != batch {
            let (prefills, decodes) = (state.prefills, state.decoders > 0);
            track.prefill_only.set(now, f64::from(u8::from(prefills && !decodes)));
            track.decode_only.set(now, f64::from(u8::from(decodes && !prefills)));
            track.mixed.set(now, f64::from(u8::from(decodes && prefills)));
            track.decodes.set(now, f64::from(state.decoders));
        }
    }

    pub(crate) fn live(&mut self, now: f64, live: u64) {
        // A count below 2⁶³ is a double sooner as a signed one.
        self.live.set(now, live as i64 as f64);
    }

    #[inline]
    pub(crate) fn gauge(&mut self, now: f64, gauge: usize, value: f64) {
        let track = &mut self.gauges[gauge];
        if value == track.value {
            return;
        }
        // The first value of all is preceded by NaN, which is no least and no greatest.
        track.hold_until(now, self.warmup);
        if self.record && (track.points.is_empty() || !same(value, track.value)) {
            track.points.push((now, value));
        }
        track.value = value;
        track.since = now;
        match &mut track.windows {
            Some(windows) => windows.set(now, value),
            None => track.later(now, self.warmup, self.exact),
        }
    }

    /// The end of the warm-up: everything measured from here.
    pub(crate) fn restart(&mut self, now: f64) {
        self.counting = true;
        self.live.restart(now);
        for stage in &mut self.stages {
            for average in [
                &mut stage.number,
                &mut stage.busy,
                &mut stage.load,
                &mut stage.prefill_only,
                &mut stage.decode_only,
                &mut stage.mixed,
                &mut stage.decodes,
            ] {
                average.restart(now);
            }
        }
        for pool in &mut self.pools {
            for average in [&mut pool.used, &mut pool.cached, &mut pool.queue, &mut pool.holders, &mut pool.leased] {
                average.restart(now);
            }
        }
    }

    // ---- the report

    pub(crate) fn finish(
        mut self,
        program: &ir::Program,
        kernel: &Kernel<'_>,
        options: &Options,
        end: f64,
        report: report::Report,
    ) -> Outcome {
        let from = self.warmup;
        let slo = (!options.slo.is_empty()).then(|| self.slo(program, options));
        let mut observes = Vec::new();
        let mut notes = Vec::new();
        for (name, samples) in program.observes.iter().zip(&self.samples) {
            let summary = samples.summarise();
            observes.push(report::Observe::summed_up(name, &summary));
            if summary.sketched {
                let count = summary.count;
                let text = format!(
                    "observe {name}: {count} samples, above {EXACT_MAX} the quantiles are sketched to 0.05 % (--exact keeps all)"
                );
                notes.push(report::Note { kind: report::NoteKind::Sketched, text });
            }
        }
        let mut unstable = Vec::new();
        let mut gauges = Vec::new();
        for (gauge, track) in program.gauges.iter().zip(&mut self.gauges) {
            gauges.push(track.report(&gauge.name, from, end));
            if matches!(track.later, Some(Later::Doubling(_))) {
                let name = &gauge.name;
                let text = format!(
                    "gauge {name}: above {EXACT_MAX} changes its interval is from windows cut to 1.6 % (--exact keeps all)"
                );
                notes.push(report::Note { kind: report::NoteKind::Sketched, text });
            }
        }
        let mut stages = Vec::new();
        for (id, (track, row)) in self.stages.iter_mut().zip(report.stages).enumerate() {
            if row.kind != "delay" {
                note_growth(&mut unstable, &mut track.queue, end, &row.name, row.index, "jobs at");
            }
            stages.push(track.report(kernel, id as u32, from, end, row));
        }
        let mut pools = Vec::new();
        let left = kernel.left();
        for (id, (track, row)) in self.pools.iter_mut().zip(report.pools).enumerate() {
            let row = report::Pool { left: left[id], ..row };
            note_growth(&mut unstable, &mut track.windows, end, &row.name, row.index, "sessions waiting at");
            pools.push(track.report(kernel, id as u32, from, end, row));
        }
        let mut report = report::Report {
            mean_live: self.live.mean(from, end),
            ended: self.ended,
            failed: kernel.failed(),
            turns: self.turns,
            observes,
            gauges,
            stages,
            pools,
            slo,
            ..report
        };
        note_pools(&mut report);
        report.notes.extend(unstable);
        report.notes.extend(notes);
        let recorded = options.record;
        Outcome {
            report,
            samples: if recorded { self.keyed_samples } else { Vec::new() },
            gauge_points: if recorded { self.gauges.into_iter().map(|g| g.points).collect() } else { Vec::new() },
        }
    }

    fn slo(&self, program: &ir::Program, options: &Options) -> report::Slo {
        use std::collections::BTreeMap;
        let mut within: BTreeMap<(u64, u64), Vec<Option<bool>>> = BTreeMap::new();
        let mut each = Vec::new();
        for (at, (name, limit)) in options.slo.iter().enumerate() {
            let samples: &[Sample] =
                program.observes.iter().position(|o| o == name).map_or(&[], |observe| &self.keyed_samples[observe]);
            let good = samples.iter().filter(|s| s.value <= *limit).count();
            let share = good as f64 / samples.len() as f64;
            each.push(report::SloLimit { name: name.clone(), limit: *limit, share, count: samples.len() as u64 });
            for sample in samples {
                let turn = within
                    .entry((sample.session, sample.turn.to_bits()))
                    .or_insert_with(|| vec![None; options.slo.len()]);
                let so_far = turn[at].unwrap_or(true);
                turn[at] = Some(so_far && sample.value <= *limit);
            }
        }
        let complete: Vec<bool> = within
            .values()
            .filter(|limits| limits.iter().all(Option::is_some))
            .map(|limits| limits.iter().all(|l| *l == Some(true)))
            .collect();
        let joint = complete.iter().filter(|good| **good).count() as f64 / complete.len() as f64;
        report::Slo { each, joint, joint_count: complete.len() as u64 }
    }
}

fn same(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

impl Later {
    fn set(&mut self, now: f64, value: f64, from: f64, exact: bool) {
        match self {
            Self::Points(points) => {
                points.push((now, value));
                if !exact && points.len() > EXACT_MAX {
                    if now > from {
                        *self = Self::Doubling(Doubling::new(from, points));
                    } else {
                        // Before the warm-up ends only the latest counts.
                        *points = vec![(now, value)];
                    }
                }
            }
            Self::Doubling(doubling) => doubling.set(now, value),
        }
    }

    /// The means of twenty windows up to `end`.
    fn means(&mut self, from: f64, end: f64, value: f64) -> [f64; BATCHES] {
        match self {
            Self::Points(points) => {
                let mut windows = Windows::new(from, end, 0.0);
                points.iter().for_each(|(time, value)| windows.set(*time, *value));
                windows.set(end, value);
                windows.means()
            }
            Self::Doubling(doubling) => {
                doubling.set(end, value);
                doubling.means()
            }
        }
    }
}

impl GaugeTrack {
    fn later(&mut self, now: f64, warmup: f64, exact: bool) {
        if let Some(later) = &mut self.later {
            later.set(now, self.value, warmup, exact);
        }
    }

    #[inline]
    fn hold_until(&mut self, now: f64, warmup: f64) {
        if now > self.since && now > warmup {
            // Of nothing is a NaN the least or greatest.
            if self.value < self.range.0 {
                self.range.0 = self.value;
            }
            if self.value > self.range.1 {
                self.range.1 = self.value;
            }
        }
    }

    fn report(&mut self, name: &str, from: f64, end: f64) -> report::Gauge {
        self.hold_until(end, from);
        let means = match (&mut self.windows, &mut self.later) {
            (Some(windows), _) => {
                windows.set(end, self.value);
                windows.means()
            }
            (None, Some(later)) => later.means(from, end, self.value),
            (None, None) => unreachable!("the windows are cut as time goes on, or later"),
        };
        let (min, max) = self.range;
        report::Gauge {
            name: name.to_owned(),
            mean: means.iter().sum::<f64>() / BATCHES as f64,
            ci: half_width(&means),
            min: if min.is_finite() { min } else { f64::NAN },
            max: if max.is_finite() { max } else { f64::NAN },
        }
    }
}

impl StageTrack {
    #[inline]
    fn steps_started(&mut self, cost: f64, decoders: u32, steps: u64) {
        self.decode_jobs += steps * u64::from(decoders);
        self.decode_steps.add(cost, steps);
    }

    fn report(&self, kernel: &Kernel<'_>, id: u32, from: f64, end: f64, row: report::Stage) -> report::Stage {
        let mean = |average: &TimeAverage| average.mean(from, end);
        let completed = self.completed as f64;
        let (decode_steps, decode_time) = self.decode_steps.total();
        report::Stage {
            mean_number: mean(&self.number),
            utilization: if row.kind == "shared" { mean(&self.load) } else { mean(&self.busy) },
            completed: self.completed,
            throughput: completed / (end - from),
            mean_wait: self.wait / completed,
            mean_service: self.service / completed,
            iterations: kernel.iterations(id),
            prefill_only: mean(&self.prefill_only),
            decode_only: mean(&self.decode_only),
            mixed: mean(&self.mixed),
            mean_decodes: mean(&self.decodes),
            mean_decode_batch: self.decode_jobs as f64 / decode_steps as f64,
            mean_decode_step: decode_time / decode_steps as f64,
            mean_itl: self.gaps.mean(),
            itl_p50: self.gaps.quantile(0.50),
            itl_p99: self.gaps.quantile(0.99),
            idle_with_work: kernel.idle_with_work(id),
            ..row
        }
    }
}

impl PoolTrack {
    fn report(&self, kernel: &Kernel<'_>, id: u32, from: f64, end: f64, row: report::Pool) -> report::Pool {
        let mean = |average: &TimeAverage| average.mean(from, end);
        let counts = kernel.pool_counts(id);
        report::Pool {
            mean_used: mean(&self.used),
            mean_cached: mean(&self.cached),
            mean_queue: mean(&self.queue),
            mean_holders: mean(&self.holders),
            mean_wait: self.wait / self.admitted as f64,
            admissions: counts.admissions,
            evicted_entries: counts.evicted_entries,
            evicted_units: counts.evicted_units,
            preemptions: counts.preemptions,
            spills: counts.spills,
            rejected: counts.rejected,
            stuck: counts.stuck,
            mean_leased: mean(&self.leased),
            leases_expired: counts.leases_expired,
            late_releases: counts.late_releases,
            reads_failed: counts.reads_failed,
            in_use_at_end: kernel.pool_state(id).used,
            ..row
        }
    }
}

/// A queue that grows: its last quarter above twice its second and above 1, with a trend.
fn note_growth(
    notes: &mut Vec<report::Note>,
    windows: &mut Option<Windows>,
    end: f64,
    name: &str,
    index: Option<u32>,
    what: &str,
) {
    let Some(windows) = windows else { return };
    windows.set(end, 0.0);
    let means = windows.means();
    let quarter = |k: usize| means[k * 5..(k + 1) * 5].iter().sum::<f64>() / 5.0;
    let (second, last) = (quarter(1), quarter(3));
    if last > 2.0 * second && last > 1.0 && trend(&means) > 4.0 {
        let name = report::member_name(name, index);
        let text = format!("{what} {name} grow: {second:.2} in the second quarter, {last:.2} in the last");
        notes.push(report::Note { kind: report::NoteKind::Unstable, text });
    }
}

fn note_pools(report: &mut report::Report) {
    use report::NoteKind;
    let mut notes = Vec::new();
    for pool in &report.pools {
        let name = report::member_name(&pool.name, pool.index);
        if pool.rejected > 0 {
            let text = format!("{} session(s) ended at {name}: they asked for more than its cap", pool.rejected);
            notes.push(report::Note { kind: NoteKind::Rejected, text });
        }
        if pool.stuck > 0 {
            let text = format!(
                "{} session(s) at {name} were preempted again without having got further: its cap is too small for one of them",
                pool.stuck
            );
            notes.push(report::Note { kind: NoteKind::Stuck, text });
        }
        if pool.late_releases > 0 {
            let text = format!(
                "{} release(s) of {name} came after their lease had expired: what a transfer read was no longer held",
                pool.late_releases
            );
            notes.push(report::Note { kind: NoteKind::Expired, text });
        }
        if pool.reads_failed > 0 {
            let text =
                format!("{} read(s) of {name} failed, and were dealt with as the program says", pool.reads_failed);
            notes.push(report::Note { kind: NoteKind::Failed, text });
        }
        if let Some(over) = &pool.over_cap {
            let text = format!(
                "the head of {}'s queue asks for {} of {name}, more than its cap: nobody behind it is served",
                over.queue, over.need
            );
            notes.push(report::Note { kind: NoteKind::OverCap, text });
        }
    }
    report.notes.splice(0..0, notes);
}
