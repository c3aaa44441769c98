//! All numbers of a run: compared one by one, or as one hash.
//!
//! A number is its bits, so equal means equal. Not counted are the number of events (how
//! a run was simulated, not what came of it), the remarks, and figures that are
//! functions of others here.

use std::rc::Rc;

use serq_ir::Program;
use serq_sim::Outcome;

/// A number and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Who: `pool P.kv[1]`; nobody for a figure of the whole run.
    pub of: Rc<str>,
    /// What: `mean_used`.
    pub name: &'static str,
    /// What it is measured in.
    pub unit: Unit,
    /// Its value.
    pub value: f64,
}

/// What a figure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, a fraction, or the program's own business (observations, gauges).
    One,
    /// Clock units.
    Time,
    /// Clock units, to a bucket of a histogram.
    Bucket,
    /// 1 / clock units.
    Rate,
    /// Units of the pools with this index in the program.
    Pool(usize),
}

/// A 64-bit FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Hash {
    /// Of nothing.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// With one more byte.
    #[must_use]
    pub fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// With eight more bytes.
    #[must_use]
    pub fn word(self, word: u64) -> Self {
        word.to_le_bytes().into_iter().fold(self, Self::byte)
    }

    /// With a number's bits; all NaNs are one.
    #[must_use]
    pub fn number(self, value: f64) -> Self {
        self.word(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
    }
}

/// Everything a run with samples kept came to.
pub fn figures(program: &Program, outcome: &Outcome) -> Vec<Figure> {
    let mut all = Vec::new();
    let report = &outcome.report;
    let mut run = Rows::new(&mut all, "");
    run.add("end", Unit::Time, report.end);
    run.add("arrivals", Unit::One, report.arrivals as f64);
    run.add("ended", Unit::One, report.ended as f64);
    run.add("turns", Unit::One, report.turns as f64);
    run.add("mean_live", Unit::One, report.mean_live);
    for (name, samples) in program.observes.iter().zip(&outcome.samples) {
        let mut row = Rows::new(&mut all, &format!("observe {name}"));
        row.add("samples", Unit::One, samples.len() as f64);
        for sample in samples {
            row.add("time", Unit::Time, sample.time);
            row.add("session", Unit::One, sample.session as f64);
            row.add("turn", Unit::One, sample.turn);
            row.add("value", Unit::One, sample.value);
        }
    }
    for o in &report.observes {
        let mut row = Rows::new(&mut all, &format!("observe {}", o.name));
        for (name, value) in [("mean", o.mean), ("ci", o.ci), ("cv2", o.cv2), ("p50", o.p50), ("p99", o.p99)] {
            row.add(name, Unit::One, value);
        }
    }
    for (gauge, points) in program.gauges.iter().zip(&outcome.gauge_points) {
        let mut row = Rows::new(&mut all, &format!("gauge {}", gauge.name));
        row.add("points", Unit::One, points.len() as f64);
        for (time, value) in points {
            row.add("time", Unit::Time, *time);
            row.add("value", Unit::One, *value);
        }
    }
    for g in &report.gauges {
        let mut row = Rows::new(&mut all, &format!("gauge {}", g.name));
        for (name, value) in [("mean", g.mean), ("ci", g.ci), ("min", g.min), ("max", g.max)] {
            row.add(name, Unit::One, value);
        }
    }
    for s in &report.stages {
        let member = s.index.map_or(String::new(), |k| format!("[{k}]"));
        let mut row = Rows::new(&mut all, &format!("stage {}{member}", s.name));
        for (name, unit, value) in [
            ("mean_number", Unit::One, s.mean_number),
            ("utilization", Unit::One, s.utilization),
            ("completed", Unit::One, s.completed as f64),
            ("throughput", Unit::Rate, s.throughput),
            ("mean_wait", Unit::Time, s.mean_wait),
            ("mean_service", Unit::Time, s.mean_service),
            ("iterations", Unit::One, s.iterations as f64),
            ("prefill_only", Unit::One, s.prefill_only),
            ("decode_only", Unit::One, s.decode_only),
            ("mixed", Unit::One, s.mixed),
            ("mean_decodes", Unit::One, s.mean_decodes),
            ("mean_decode_batch", Unit::One, s.mean_decode_batch),
            ("mean_decode_step", Unit::Time, s.mean_decode_step),
            ("mean_itl", Unit::Time, s.mean_itl),
            ("itl_p50", Unit::Bucket, s.itl_p50),
            ("itl_p99", Unit::Bucket, s.itl_p99),
            ("idle_with_work", Unit::One, f64::from(u8::from(s.idle_with_work))),
        ] {
            row.add(name, unit, value);
        }
    }
    for p in &report.pools {
        let member = p.index.map_or(String::new(), |k| format!("[{k}]"));
        let family = program.pools.iter().position(|pool| pool.name == p.name).expect("a row is a pool's");
        let units = Unit::Pool(family);
        let mut row = Rows::new(&mut all, &format!("pool {}{member}", p.name));
        for (name, unit, value) in [
            ("mean_used", units, p.mean_used),
            ("mean_cached", units, p.mean_cached),
            ("mean_queue", Unit::One, p.mean_queue),
            ("mean_holders", Unit::One, p.mean_holders),
            ("mean_wait", Unit::Time, p.mean_wait),
            ("admissions", Unit::One, p.admissions as f64),
            ("evicted_entries", Unit::One, p.evicted_entries as f64),
            ("evicted_units", units, p.evicted_units),
            ("preemptions", Unit::One, p.preemptions as f64),
            ("spills", Unit::One, p.spills as f64),
            ("rejected", Unit::One, p.rejected as f64),
            ("stuck", Unit::One, p.stuck as f64),
            ("mean_leased", units, p.mean_leased),
            ("leases_expired", Unit::One, p.leases_expired as f64),
            ("late_releases", Unit::One, p.late_releases as f64),
            ("over_cap_need", units, p.over_cap.as_ref().map_or(0.0, |o| o.need)),
            ("left", units, p.left),
            ("in_use_at_end", units, p.in_use_at_end),
        ] {
            row.add(name, unit, value);
        }
    }
    all
}

/// Figures of one thing.
struct Rows<'a> {
    all: &'a mut Vec<Figure>,
    of: Rc<str>,
}

impl<'a> Rows<'a> {
    fn new(all: &'a mut Vec<Figure>, of: &str) -> Self {
        Self { all, of: of.into() }
    }
}

impl Rows<'_> {
    fn add(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.all.push(Figure { of: Rc::clone(&self.of), name, unit, value });
    }
}

/// One hash of all figures, names aside.
pub fn hash(figures: &[Figure]) -> Hash {
    figures.iter().fold(Hash::EMPTY, |hash, figure| hash.number(figure.value))
}

/// The figures in which two runs differ, by name and bits; at most ten.
pub fn differences(expected: &[Figure], found: &[Figure]) -> Vec<String> {
    let mut differences: Vec<String> = expected
        .iter()
        .zip(found)
        .enumerate()
        .filter(|(_, (a, b))| {
            (&a.of, &a.name) != (&b.of, &b.name) || Hash::EMPTY.number(a.value) != Hash::EMPTY.number(b.value)
        })
        .map(|(at, (a, b))| {
            format!("figure {at}: {} {} {}, not {} {} {}", b.of, b.name, b.value, a.of, a.name, a.value)
        })
        .take(10)
        .collect();
    if expected.len() != found.len() {
        differences.push(format!("{} figures, not {}", found.len(), expected.len()));
    }
    differences
}
