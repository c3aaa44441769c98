//! All numbers of a run: compared one by one, or as one hash.
//!
//! A number is its bits, so equal means equal. Not counted are the number of events (how
//! a run was simulated, not what came of it), the remarks, and figures that are
//! functions of others here.

use serq_ir::Program;
use serq_sim::Outcome;

/// A number and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// `pool P.kv[1] mean_used`.
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// A 64-bit FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Hash {
    /// Of nothing.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// With eight more bytes.
    #[must_use]
    pub fn word(self, word: u64) -> Self {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(word.to_le_bytes().into_iter().fold(self.0, step))
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
    let mut add = |name: String, value: f64| all.push(Figure { name, value });
    let report = &outcome.report;
    add("end".into(), report.end);
    add("arrivals".into(), report.arrivals as f64);
    add("ended".into(), report.ended as f64);
    add("turns".into(), report.turns as f64);
    add("mean_live".into(), report.mean_live);
    for (at, samples) in outcome.samples.iter().enumerate() {
        let name = &program.observes[at];
        add(format!("observe {name} samples"), samples.len() as f64);
        for (k, sample) in samples.iter().enumerate() {
            add(format!("observe {name} time {k}"), sample.time);
            add(format!("observe {name} session {k}"), sample.session as f64);
            add(format!("observe {name} turn {k}"), sample.turn);
            add(format!("observe {name} value {k}"), sample.value);
        }
    }
    for o in &report.observes {
        for (figure, value) in [("mean", o.mean), ("ci", o.ci), ("cv2", o.cv2), ("p50", o.p50), ("p99", o.p99)] {
            add(format!("observe {} {figure}", o.name), value);
        }
    }
    for (at, points) in outcome.gauge_points.iter().enumerate() {
        let name = &program.gauges[at].name;
        add(format!("gauge {name} points"), points.len() as f64);
        for (k, (time, value)) in points.iter().enumerate() {
            add(format!("gauge {name} time {k}"), *time);
            add(format!("gauge {name} value {k}"), *value);
        }
    }
    for g in &report.gauges {
        for (figure, value) in [("mean", g.mean), ("ci", g.ci), ("min", g.min), ("max", g.max)] {
            add(format!("gauge {} {figure}", g.name), value);
        }
    }
    for s in &report.stages {
        let member = s.index.map_or(String::new(), |k| format!("[{k}]"));
        for (figure, value) in [
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
            ("idle_with_work", f64::from(u8::from(s.idle_with_work))),
        ] {
            add(format!("stage {}{member} {figure}", s.name), value);
        }
    }
    for p in &report.pools {
        let member = p.index.map_or(String::new(), |k| format!("[{k}]"));
        for (figure, value) in [
            ("mean_used", p.mean_used),
            ("mean_cached", p.mean_cached),
            ("mean_queue", p.mean_queue),
            ("mean_holders", p.mean_holders),
            ("mean_wait", p.mean_wait),
            ("admissions", p.admissions as f64),
            ("evicted_entries", p.evicted_entries as f64),
            ("evicted_units", p.evicted_units),
            ("preemptions", p.preemptions as f64),
            ("spills", p.spills as f64),
            ("rejected", p.rejected as f64),
            ("stuck", p.stuck as f64),
            ("over_cap_queue", p.over_cap.as_ref().map_or(0.0, |o| o.queue as f64)),
            ("over_cap_need", p.over_cap.as_ref().map_or(0.0, |o| o.need)),
            ("left", p.left),
            ("in_use_at_end", p.in_use_at_end),
        ] {
            add(format!("pool {}{member} {figure}", p.name), value);
        }
    }
    all
}

/// One hash of all figures, names aside.
pub fn hash(figures: &[Figure]) -> Hash {
    figures.iter().fold(Hash::EMPTY, |hash, figure| hash.number(figure.value))
}

/// The figures in which two runs differ, `expected` first, by name and bits; at most ten.
pub fn differences(expected: &[Figure], found: &[Figure]) -> Vec<String> {
    let mut differences: Vec<String> = expected
        .iter()
        .zip(found)
        .filter(|(a, b)| a.name != b.name || Hash::EMPTY.number(a.value) != Hash::EMPTY.number(b.value))
        .map(|(a, b)| {
            let name = if a.name == b.name { a.name.clone() } else { format!("{} / {}", a.name, b.name) };
            format!("{name}: {}, not {}", b.value, a.value)
        })
        .take(10)
        .collect();
    if expected.len() != found.len() {
        differences.push(format!("{} figures, not {}", found.len(), expected.len()));
    }
    differences
}
