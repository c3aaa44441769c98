//! How often the generated programs hit each grammar alternative and semantic branch.
//!
//! Alternatives are counted where they are written; branches (a preemption, a lease
//! that expired, a consumed prefix) from what our run did. A program counts once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::answer::Answer;
use super::generator::Generated;

/// Branches told from figures of pools and stages: name, row, figure.
const FIGURES: [(&str, &str, &str); 14] = [
    ("admitted", "pools", "admissions"),
    ("waited for a pool", "pools", "mean_wait"),
    ("cached", "pools", "mean_cached"),
    ("evicted in part or whole", "pools", "evicted_units"),
    ("evicted a whole entry", "pools", "evicted_entries"),
    ("preempted", "pools", "preemptions"),
    ("stuck", "pools", "stuck"),
    ("rejected", "pools", "rejected"),
    ("spilled", "pools", "spills"),
    ("a waiter beyond the cap", "pools", "over_cap"),
    ("mixed iteration", "stages", "mixed"),
    ("decode-only iteration", "stages", "decode_only"),
    ("gap between tokens", "stages", "mean_itl"),
    ("waited for a server", "stages", "mean_wait"),
];

#[derive(Debug, Default)]
pub(super) struct Coverage {
    hits: BTreeMap<String, u64>,
}

impl Coverage {
    pub(super) fn count(&mut self, generated: &Generated, ours: &Answer) {
        for feature in generated.features.keys() {
            self.hit(feature, true);
        }
        for (name, rows, figure) in FIGURES {
            let rows = ours.at(&format!("/report/{rows}")).and_then(Value::as_array);
            let hit = rows.is_some_and(|rows| rows.iter().any(|row| happened(&row[figure])));
            self.hit(&format!("did: {name}"), hit);
        }
        let idle = |row: &Value| row["idle_with_work"] == Value::Bool(true);
        let rows = ours.at("/report/stages").and_then(Value::as_array);
        self.hit("did: an engine idle with work", rows.is_some_and(|rows| rows.iter().any(idle)));
        let notes = ours.at("/report/notes").and_then(Value::as_array);
        let locked = notes.is_some_and(|notes| notes.iter().any(|note| note["kind"] == "deadlocked"));
        self.hit("did: deadlock", locked);
        for (name, sample) in [("a consumed prefix", "found"), ("executed again after a preemption", "was")] {
            let samples = ours.at(&format!("/samples/{sample}/samples")).and_then(Value::as_array);
            self.hit(&format!("did: {name}"), samples.is_some_and(|s| s.iter().any(happened)));
        }
        self.hit("did: stop with an error", matches!(ours, Answer::Stopped(..)));
    }

    fn hit(&mut self, name: &str, hit: bool) {
        *self.hits.entry(name.to_owned()).or_default() += u64::from(hit);
    }

    /// What was hit less often than this.
    pub(super) fn below(&self, least: u64) -> Vec<String> {
        self.hits.iter().filter(|(_, hits)| **hits < least).map(|(name, hits)| format!("{name} ({hits})")).collect()
    }

    pub(super) fn text(&self) -> String {
        let mut out =
            "\nprograms with each grammar alternative, and in which each branch was taken (did: …)\n".to_owned();
        for (name, hits) in &self.hits {
            let _ = writeln!(out, "{hits:>7}   {name}");
        }
        out
    }
}

fn happened(figure: &Value) -> bool {
    match figure {
        Value::Number(n) => n.as_f64().is_some_and(|x| x > 0.0),
        Value::Object(_) => true,
        _ => false,
    }
}
