//! What the gateway counts, and how Prometheus reads it.
//!
//! Names are vLLM's where the figure is the same, so that its dashboards and routers read them;
//! the gateway's own begin with `serq_`. Times are as the client has them: from the request's
//! head to when a token is written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;

use crate::backend::{FinishReason, Gauge};

/// Everything counted. Each count holds the lock for a few additions.
#[derive(Default)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Only those the backend has: clients can't add names.
    models: BTreeMap<String, ModelCounts>,
    responses: BTreeMap<(&'static str, u16), u64>,
    errors: BTreeMap<&'static str, u64>,
    connections: u64,
}

#[derive(Default)]
struct ModelCounts {
    in_flight: u64,
    outcomes: BTreeMap<&'static str, u64>,
    finished: BTreeMap<&'static str, u64>,
    prompt_tokens: u64,
    generation_tokens: u64,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    end_to_end: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
}

/// How a request ended.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Finished,
    /// The client went away, or was cut off.
    Cancelled,
    Failed,
    Refused,
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Additions leave no count half done.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, model: &str, count: impl FnOnce(&mut ModelCounts)) {
        let mut counts = self.counts();
        match counts.models.get_mut(model) {
            Some(counts) => count(counts),
            None => count(counts.models.entry(model.to_owned()).or_default()),
        }
    }

    pub(crate) fn began(&self, model: &str) {
        self.of(model, |counts| counts.in_flight += 1);
    }

    pub(crate) fn ended(&self, model: &str, outcome: Outcome, time: Duration) {
        let name = match outcome {
            Outcome::Finished => "finished",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
            Outcome::Refused => "refused",
        };
        self.of(model, |counts| {
            counts.in_flight -= 1;
            *counts.outcomes.entry(name).or_default() += 1;
            if matches!(outcome, Outcome::Finished) {
                counts.end_to_end.add(SECONDS, time.as_secs_f64(), 1);
            }
        });
    }

    pub(crate) fn prompt(&self, model: &str, tokens: usize) {
        self.of(model, |counts| {
            counts.prompt_tokens += tokens as u64;
            counts.request_prompt_tokens.add(TOKENS, tokens as f64, 1);
        });
    }

    pub(crate) fn first_token(&self, model: &str, time: Duration) {
        self.of(model, |counts| counts.time_to_first_token.add(SECONDS, time.as_secs_f64(), 1));
    }

    /// The time between two pieces of a choice, the later of `tokens`.
    pub(crate) fn gap(&self, model: &str, time: Duration, tokens: usize) {
        let each = time.as_secs_f64() / tokens as f64;
        self.of(model, |counts| counts.inter_token_latency.add(SECONDS, each, tokens as u64));
    }

    pub(crate) fn generated(&self, model: &str, tokens: usize) {
        self.of(model, |counts| counts.generation_tokens += tokens as u64);
    }

    /// A choice is over; `decode` is from its first token to its last.
    pub(crate) fn choice(&self, model: &str, reason: FinishReason, tokens: usize, decode: Option<Duration>) {
        let name = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        };
        self.of(model, |counts| {
            *counts.finished.entry(name).or_default() += 1;
            counts.request_generation_tokens.add(TOKENS, tokens as f64, 1);
            if let Some(decode) = decode.filter(|_| tokens > 1) {
                counts.time_per_output_token.add(SECONDS, decode.as_secs_f64() / (tokens - 1) as f64, 1);
            }
        });
    }

    pub(crate) fn response(&self, path: &'static str, status: StatusCode) {
        *self.counts().responses.entry((path, status.as_u16())).or_default() += 1;
    }

    pub(crate) fn error(&self, code: &'static str) {
        *self.counts().errors.entry(code).or_default() += 1;
    }

    pub(crate) fn connections(&self, connections: usize) {
        self.counts().connections = connections as u64;
    }

    /// In Prometheus' text format, the backend's figures at the end.
    pub(crate) fn render(&self, gauges: &[Gauge]) -> String {
        let mut page = Page::default();
        self.counts().render(&mut page);
        let mut names: Vec<&str> = Vec::new();
        for gauge in gauges {
            if !names.contains(&gauge.name.as_str()) {
                names.push(&gauge.name);
            }
        }
        for name in names {
            let same = || gauges.iter().filter(|gauge| gauge.name == name);
            let first = same().next().expect("the name is one of theirs");
            page.head(name, if first.counter { "counter" } else { "gauge" }, &first.help);
            for gauge in same() {
                let labels: Vec<_> = gauge.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                page.sample(name, &labels, gauge.value);
            }
        }
        page.text
    }
}

impl Counts {
    fn render(&self, page: &mut Page) {
        page.head("serq_connections", "gauge", "Connections open.");
        page.sample("serq_connections", &[], self.connections as f64);
        page.head("serq_http_responses_total", "counter", "Responses begun, by path and status.");
        for ((path, status), count) in &self.responses {
            let labels = [("path", *path), ("status", &status.to_string())];
            page.sample("serq_http_responses_total", &labels, *count as f64);
        }
        page.head("serq_errors_total", "counter", "Errors told, by code.");
        for (code, count) in &self.errors {
            page.sample("serq_errors_total", &[("code", code)], *count as f64);
        }

        self.each(page, "serq_requests_in_flight", "gauge", "Requests not over.", |model| {
            vec![(None, model.in_flight as f64)]
        });
        self.each(page, "serq_requests_total", "counter", "Requests over, by how they ended.", |model| {
            model.outcomes.iter().map(|(name, count)| (Some(("outcome", *name)), *count as f64)).collect()
        });
        self.each(page, "vllm:request_success_total", "counter", "Answers finished, by reason.", |model| {
            model.finished.iter().map(|(name, count)| (Some(("finished_reason", *name)), *count as f64)).collect()
        });
        self.each(page, "vllm:prompt_tokens_total", "counter", "Tokens of the prompts taken.", |model| {
            vec![(None, model.prompt_tokens as f64)]
        });
        self.each(page, "vllm:generation_tokens_total", "counter", "Tokens generated and written.", |model| {
            vec![(None, model.generation_tokens as f64)]
        });

        let help = "From a request's head to its first token.";
        self.histogram(page, "vllm:time_to_first_token_seconds", help, SECONDS, |model| &model.time_to_first_token);
        let help = "From a token to the next one.";
        self.histogram(page, "vllm:inter_token_latency_seconds", help, SECONDS, |model| &model.inter_token_latency);
        let (name, help) = ("vllm:request_time_per_output_token_seconds", "An answer's mean time from token to token.");
        self.histogram(page, name, help, SECONDS, |model| &model.time_per_output_token);
        let help = "From a request's head to its end, where it finished.";
        self.histogram(page, "vllm:e2e_request_latency_seconds", help, SECONDS, |model| &model.end_to_end);
        let help = "Tokens of a prompt.";
        self.histogram(page, "vllm:request_prompt_tokens", help, TOKENS, |model| &model.request_prompt_tokens);
        let help = "Tokens of an answer.";
        self.histogram(page, "vllm:request_generation_tokens", help, TOKENS, |model| &model.request_generation_tokens);
    }

    fn histogram(
        &self,
        page: &mut Page,
        name: &str,
        help: &str,
        bounds: &[f64],
        histogram: impl Fn(&ModelCounts) -> &Histogram,
    ) {
        page.head(name, "histogram", help);
        for (model, counts) in &self.models {
            histogram(counts).render(page, name, bounds, model);
        }
    }

    /// One metric, with the same label first for each model.
    fn each<'a>(
        &'a self,
        page: &mut Page,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl Fn(&'a ModelCounts) -> Vec<(Option<(&'static str, &'static str)>, f64)>,
    ) {
        page.head(name, kind, help);
        for (model, counts) in &self.models {
            for (label, value) in samples(counts) {
                let labels: Vec<_> = [("model_name", model.as_str())].into_iter().chain(label).collect();
                page.sample(name, &labels, value);
            }
        }
    }
}

/// vLLM's bounds for the time to the first token, finer below 25 ms as small models are.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
    7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

const TOKENS: &[f64] = &[
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10_000.0,
    20_000.0,
    50_000.0,
    100_000.0,
    200_000.0,
    500_000.0,
    1_000_000.0,
];

#[derive(Default)]
struct Histogram {
    /// How many are in each bucket alone; empty until the first comes.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, bounds: &[f64], value: f64, count: u64) {
        self.counts.resize(bounds.len() + 1, 0);
        self.counts[bounds.partition_point(|bound| *bound < value)] += count;
        self.sum += value * count as f64;
    }

    fn render(&self, page: &mut Page, name: &str, bounds: &[f64], model: &str) {
        let mut total = 0;
        for index in 0..=bounds.len() {
            total += self.counts.get(index).copied().unwrap_or(0);
            let bound = bounds.get(index).map_or("+Inf".to_owned(), f64::to_string);
            page.sample(&format!("{name}_bucket"), &[("model_name", model), ("le", &bound)], total as f64);
        }
        page.sample(&format!("{name}_sum"), &[("model_name", model)], self.sum);
        page.sample(&format!("{name}_count"), &[("model_name", model)], total as f64);
    }
}

/// The text format, a line at a time.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let text = text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            let _ = write!(self.text, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        if value.is_infinite() {
            let _ = writeln!(self.text, " {}Inf", if value > 0.0 { '+' } else { '-' });
        } else {
            let _ = writeln!(self.text, " {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_bucket_has_all_that_are_at_most_its_bound() {
        let mut page = Page::default();
        let mut histogram = Histogram::default();
        for value in [0.5, 1.0, 1.5, 9.0] {
            histogram.add(&[1.0, 2.0], value, 1);
        }
        histogram.render(&mut page, "h", &[1.0, 2.0], "m");
        expect![[r#"
            h_bucket{model_name="m",le="1"} 2
            h_bucket{model_name="m",le="2"} 3
            h_bucket{model_name="m",le="+Inf"} 4
            h_sum{model_name="m"} 12
            h_count{model_name="m"} 4
        "#]]
        .assert_eq(&page.text);
    }

    #[test]
    fn the_first_token_of_an_answer_is_no_part_of_its_time_per_token() {
        let metrics = Metrics::default();
        metrics.choice("m", FinishReason::Stop, 5, Some(Duration::from_secs(4)));
        metrics.choice("m", FinishReason::Stop, 1, Some(Duration::ZERO));
        let page = metrics.render(&[]);
        let name = "vllm:request_time_per_output_token_seconds";
        assert!(page.contains(&format!("{name}_sum{{model_name=\"m\"}} 1\n{name}_count{{model_name=\"m\"}} 1\n")));
    }

    #[test]
    fn figures_of_one_name_are_one_metric_and_labels_are_escaped() {
        let gauge = |name: &str, label: &str, value| Gauge {
            name: name.to_owned(),
            help: "Two\nlines".to_owned(),
            counter: name.ends_with("_total"),
            labels: vec![("instance".to_owned(), label.to_owned())],
            value,
        };
        let gauges = [gauge("blocks", "a", 1.0), gauge("steps_total", "\"\\\n", 2.5), gauge("blocks", "b", f64::NAN)];
        let page = Metrics::default().render(&gauges);
        let own = page.find("# HELP blocks").expect("the backend's figures");
        expect![[r#"
            # HELP blocks Two\nlines
            # TYPE blocks gauge
            blocks{instance="a"} 1
            blocks{instance="b"} NaN
            # HELP steps_total Two\nlines
            # TYPE steps_total counter
            steps_total{instance="\"\\\n"} 2.5
        "#]]
        .assert_eq(&page[own..]);
    }
}
