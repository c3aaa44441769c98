//! What a run says: the figures of one simulation, in a stable order.
//!
//! The names are the report's JSON names. Times are in the program's clock unit,
//! amounts in pool units, rates in 1/clock, fractions in 0 … 1. A figure that does
//! not exist (no sample, no iteration) is NaN here and `null` in JSON.

use serde::{Serialize, Serializer};
use serq_ir::Program;
use serq_ir::json::Number;

use crate::samples::{Samples, Summary};

/// The version of [`Report`]'s JSON.
pub const REPORT_SCHEMA: u32 = 1;

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: u32,
    /// Version of this serq.
    pub serq_version: &'static str,
    /// The program's name.
    pub program: String,
    /// Its constants, as they were set.
    pub constants: Constants,
    /// Where the run was to end.
    pub horizon: f64,
    /// Where it ended: the horizon, or earlier with `arrivals`.
    pub end: f64,
    /// Samples count from here.
    pub warmup: f64,
    /// The seed.
    pub seed: u64,
    /// Heap events processed.
    pub events: u64,
    /// Times that several equal steps of an engine were taken at once.
    pub leaps: u64,
    /// Steps whose end was no event for that.
    pub steps_leapt: u64,
    /// Sessions that arrived, whole run.
    pub arrivals: u64,
    /// Sessions that ended, after warm-up.
    pub ended: u64,
    /// Sessions that ended at a `fail` or a transfer's `else error`, whole run.
    pub failed: u64,
    /// Turns begun, after warm-up.
    pub turns: u64,
    /// Time average of live sessions.
    #[serde(serialize_with = "figure")]
    pub mean_live: f64,
    /// Observations in program order.
    #[serde(serialize_with = "observes_by_name")]
    pub observes: Vec<Observe>,
    /// Gauges in program order.
    #[serde(serialize_with = "gauges_by_name")]
    pub gauges: Vec<Gauge>,
    /// One row a member, declaration order.
    pub stages: Vec<Stage>,
    /// One row a member, declaration order.
    pub pools: Vec<Pool>,
    /// Where the time to the first token goes, in programs with prefill and decode engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft: Option<Ttft>,
    /// What `--slo` asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// What a reader should know: rejections, stuck sessions, clamped work, instability…
    pub notes: Vec<Note>,
}

/// A program's constants by name, in text order, then those of its lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants(Vec<(String, Number)>);

impl Constants {
    /// Those of a program.
    pub fn of(program: &Program) -> Self {
        let one = program.constants.iter().map(|constant| (constant.name.clone(), constant.value));
        let of_list = program.lists.iter().flat_map(|list| {
            list.values.iter().enumerate().map(|(at, value)| (member_name(&list.name, Some(at as u32)), *value))
        });
        Self(one.chain(of_list).collect())
    }
}

impl Serialize for Constants {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// An observation.
#[derive(Clone, Debug, Serialize)]
pub struct Observe {
    /// As written.
    #[serde(skip)]
    pub name: String,
    /// Samples after warm-up.
    pub count: u64,
    /// Their mean.
    #[serde(serialize_with = "figure")]
    pub mean: f64,
    /// Half-width of the 95 % interval from 20 batches; NaN below 40 samples.
    #[serde(serialize_with = "figure")]
    pub ci: f64,
    /// Sample variance / mean².
    #[serde(serialize_with = "figure")]
    pub cv2: f64,
    /// The ⌈0.50 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p50: f64,
    /// The ⌈0.90 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p90: f64,
    /// The ⌈0.95 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p95: f64,
    /// The ⌈0.99 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p99: f64,
}

impl Observe {
    /// The figures of samples.
    pub fn of(name: &str, samples: &Samples) -> Self {
        Self::summed_up(name, &samples.summarise())
    }

    pub(crate) fn summed_up(name: &str, summary: &Summary) -> Self {
        let Summary { count, mean, ci, cv2, quantiles: [p50, p90, p95, p99], .. } = *summary;
        Self { name: name.to_owned(), count, mean, ci, cv2, p50, p90, p95, p99 }
    }
}

/// A gauge, over the time after warm-up.
#[derive(Clone, Debug, Serialize)]
pub struct Gauge {
    /// As written.
    #[serde(skip)]
    pub name: String,
    /// Time average.
    #[serde(serialize_with = "figure")]
    pub mean: f64,
    /// Half-width of the 95 % interval from 20 equal windows.
    #[serde(serialize_with = "figure")]
    pub ci: f64,
    /// Least value held for a positive time.
    #[serde(serialize_with = "figure")]
    pub min: f64,
    /// Greatest value held for a positive time.
    #[serde(serialize_with = "figure")]
    pub max: f64,
}

/// One member of a stage.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stage {
    /// `D`, `P.nic`, `D.nic.latency`.
    pub name: String,
    /// Member, `None` for a scalar.
    pub index: Option<u32>,
    /// `fifo`, `ps`, `delay`, `step`, `shared`.
    #[serde(skip)]
    pub kind: &'static str,
    /// Time average of jobs present.
    #[serde(serialize_with = "figure")]
    pub mean_number: f64,
    /// Fraction of time with a job; of a shared stage, its load.
    #[serde(serialize_with = "figure")]
    pub utilization: f64,
    /// Jobs completed after warm-up.
    pub completed: u64,
    /// Per clock unit.
    #[serde(serialize_with = "figure")]
    pub throughput: f64,
    /// Joining to service.
    #[serde(serialize_with = "figure")]
    pub mean_wait: f64,
    /// In service (on a step stage: joining to done).
    #[serde(serialize_with = "figure")]
    pub mean_service: f64,
    /// Iterations started, whole run.
    pub iterations: u64,
    /// Fraction of time in iterations with prefill tokens only.
    #[serde(serialize_with = "figure")]
    pub prefill_only: f64,
    /// … with decode tokens only.
    #[serde(serialize_with = "figure")]
    pub decode_only: f64,
    /// … with both.
    #[serde(serialize_with = "figure")]
    pub mixed: f64,
    /// Time average of decode jobs in the running iteration.
    #[serde(serialize_with = "figure")]
    pub mean_decodes: f64,
    /// Mean decode jobs over iterations with one.
    #[serde(serialize_with = "figure")]
    pub mean_decode_batch: f64,
    /// Mean duration of those.
    #[serde(serialize_with = "figure")]
    pub mean_decode_step: f64,
    /// Mean inter-token gap.
    #[serde(serialize_with = "figure")]
    pub mean_itl: f64,
    /// Median, to 0.5 %.
    #[serde(serialize_with = "figure")]
    pub itl_p50: f64,
    /// 99th percentile, to 0.5 %.
    #[serde(serialize_with = "figure")]
    pub itl_p99: f64,
    /// At the end it had waiting work and its last attempt scheduled nothing.
    pub idle_with_work: bool,
}

/// One member of a pool.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pool {
    /// `D.kv`.
    pub name: String,
    /// Member, `None` for a scalar.
    pub index: Option<u32>,
    /// Units; may be infinite.
    #[serde(skip)]
    pub cap: f64,
    /// Time average of allocated units.
    #[serde(serialize_with = "figure")]
    pub mean_used: f64,
    /// Time average of cached units.
    #[serde(serialize_with = "figure")]
    pub mean_cached: f64,
    /// Time average of waiting sessions.
    #[serde(serialize_with = "figure")]
    pub mean_queue: f64,
    /// Time average of holds and leases.
    #[serde(serialize_with = "figure")]
    pub mean_holders: f64,
    /// Time average of leased units.
    #[serde(serialize_with = "figure")]
    pub mean_leased: f64,
    /// Joining to admission, over admissions after warm-up of holds whose first pool it is.
    #[serde(serialize_with = "figure")]
    pub mean_wait: f64,
    /// Holds admitted, whole run.
    pub admissions: u64,
    /// Cache entries fully evicted.
    pub evicted_entries: u64,
    /// Units evicted.
    #[serde(serialize_with = "figure")]
    pub evicted_units: f64,
    /// Holds preempted.
    pub preemptions: u64,
    /// Pieces spilled.
    pub spills: u64,
    /// Sessions ended because no capacity could serve them.
    pub rejected: u64,
    /// Sessions preempted without having got further.
    pub stuck: u64,
    /// Leases whose time was over before somebody took them, whole run.
    pub leases_expired: u64,
    /// Releases that came after their lease had expired: what a transfer read was no longer held.
    pub late_releases: u64,
    /// Runs that read it for a transfer and failed, whole run.
    pub reads_failed: u64,
    /// A waiter no capacity can serve.
    pub over_cap: Option<OverCap>,
    /// Units at the end owned by nothing alive: no hold, lease, flow or cached entry. Always 0.
    pub left: f64,
    /// Units held, leased or in a flow at the end.
    pub in_use_at_end: f64,
}

/// A waiter no capacity can serve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverCap {
    /// The pool in whose queue it waits, `kv` or `kv[3]`.
    pub queue: String,
    /// Units its head asks for.
    #[serde(serialize_with = "figure")]
    pub need: f64,
}

/// The time from asked to the first token, in parts ([`crate::ttft`]).
#[derive(Clone, Debug, Serialize)]
pub struct Ttft {
    /// Requests whose first token came after warm-up.
    pub count: u64,
    /// The parts' quantiles are sketched to 0.05 %: there are more than 8,192 requests.
    pub sketched: bool,
    /// Their whole time.
    pub total: TtftPart,
    /// In the order of a request's way. Their means sum to the total's.
    #[serde(serialize_with = "by_word")]
    pub parts: Vec<(&'static str, TtftPart)>,
}

/// A part of the time to the first token, over all requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TtftPart {
    /// Mean.
    #[serde(serialize_with = "figure")]
    pub mean: f64,
    /// Half-width of its 95 % interval, as of an observation.
    #[serde(serialize_with = "figure")]
    pub ci: f64,
    /// The mean over the total's mean.
    #[serde(serialize_with = "figure")]
    pub share: f64,
    /// The ⌈0.50 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p50: f64,
    /// The ⌈0.90 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p90: f64,
    /// The ⌈0.95 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p95: f64,
    /// The ⌈0.99 n⌉-th smallest.
    #[serde(serialize_with = "figure")]
    pub p99: f64,
}

/// Shares of samples within limits.
#[derive(Clone, Debug, Serialize)]
pub struct Slo {
    /// Each limit alone.
    pub each: Vec<SloLimit>,
    /// Share of (session, turn)s, among those with a sample of every name, within all limits.
    #[serde(serialize_with = "figure")]
    pub joint: f64,
    /// How many (session, turn)s that is of.
    pub joint_count: u64,
}

/// One limit.
#[derive(Clone, Debug, Serialize)]
pub struct SloLimit {
    /// The observation.
    pub name: String,
    /// Its limit.
    #[serde(serialize_with = "figure")]
    pub limit: f64,
    /// Share of samples at or below it.
    #[serde(serialize_with = "figure")]
    pub share: f64,
    /// Samples.
    pub count: u64,
}

/// A remark on the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Note {
    /// Which remark.
    pub kind: NoteKind,
    /// Its sentence.
    pub text: String,
}

/// Which remark a note is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// Sessions ended because a request exceeds a pool.
    Rejected,
    /// Sessions preempted for ever. The command's exit status is 1.
    Stuck,
    /// Negative work taken as 0.
    Clamped,
    /// Leases that had expired when they were to be taken.
    Expired,
    /// A queue grows.
    Unstable,
    /// Sessions wait and nothing is pending.
    Deadlocked,
    /// A test-valued observation is 0 throughout.
    Constant,
    /// A waiter no capacity can serve.
    OverCap,
    /// Statistics above the exact bound.
    Sketched,
    /// Wrong rows of the trace were left out.
    Skipped,
    /// Too short a run for some of its figures.
    Short,
    /// Reads or sessions that failed as the program has it; of a run with real clients: requests without an answer, or with another one than was asked for.
    Failed,
    /// Of such a run: what its clients could not know, or did not do as they should.
    Clients,
}

/// A member as messages write it: `kv`, or `kv[3]` of a family.
pub fn member_name(name: &str, index: Option<u32>) -> String {
    index.map_or_else(|| name.to_owned(), |k| format!("{name}[{k}]"))
}

/// A JSON number; NaN and infinities are null.
fn figure<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.serialize_none() }
}

fn by_word<S: Serializer>(rows: &[(&'static str, TtftPart)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rows.iter().map(|(word, row)| (word, row)))
}

fn observes_by_name<S: Serializer>(rows: &[Observe], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rows.iter().map(|row| (&row.name, row)))
}

fn gauges_by_name<S: Serializer>(rows: &[Gauge], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rows.iter().map(|row| (&row.name, row)))
}
