//! The parts of the time to the first token: they sum for every request, the whole is the
//! program's own measurement, and small runs give what a sum by hand gives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::record::Recorder;
use serq_sim::ttft::{Part, Request};
use serq_sim::{Options, Outcome, Steps, simulate_recorded};

/// Keeps the requests.
#[derive(Default)]
struct Requests(Vec<Request>);

impl Recorder for Requests {
    fn first_token(&mut self, request: &Request) {
        self.0.push(*request);
    }
}

fn program(name: &str, text: &str, settings: &Settings) -> Program {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lib");
    let library = |path: &str| libraries.join(Path::new(path).file_name().expect("a library is a file"));
    let (mut sources, found) =
        load(Some(name), text, &mut |path| Ok(fs::read_to_string(library(path)).expect("the library can be read")));
    let (program, more) = compile(&mut sources, settings);
    program.unwrap_or_else(|| panic!("{name}: {found:#?} {more:#?}"))
}

fn example(file: &str, sets: &[(&str, &str)], horizon: f64) -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pd-disaggregation").join(file);
    let text = fs::read_to_string(&path).expect("the example can be read");
    let sets = sets.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    program(file, &text, &Settings { sets, horizon: Some(horizon), warmup: Some(0.0), ..Settings::default() })
}

fn run(program: &Program, steps: Steps) -> (Outcome, Vec<Request>) {
    let options = Options { record: true, steps, ..Options::default() };
    let mut requests = Requests::default();
    let outcome = simulate_recorded(program, None, &options, Some(&mut requests), &mut |_, _| true).expect("it runs");
    (outcome, requests.0)
}

/// The parts of each request that are not 0, by session.
fn parts(text: &str) -> BTreeMap<u64, Vec<(&'static str, f64)>> {
    let (_, requests) = run(&program("by hand", text, &Settings::default()), Steps::Leaps);
    let of = |request: &Request| {
        let parts = Part::ALL.iter().map(|&part| (part.word(), request.parts[part as usize]));
        parts.filter(|(_, time)| *time != 0.0).collect()
    };
    requests.iter().map(|request| (request.session, of(request))).collect()
}

#[test]
fn parts_sum_and_the_whole_is_what_the_program_measures() {
    let overloaded: &[(&str, &str)] = &[("blocksD", "1100"), ("Lambda", "3")];
    for (file, sets, horizon) in [
        ("llmd_nixl_pull.sq", &[][..], 200.0),
        ("llmd_nixl_pull.sq", &[("thr", "inf")][..], 100.0),
        ("llmd_nixl_pull.sq", overloaded, 60.0),
        ("vllm_0_32_pull.sq", &[][..], 200.0),
        ("vllm_0_32_pull.sq", overloaded, 60.0),
        ("vllm_0_32_pull.sq", &[("pipelined", "0"), ("blocksD", "1100"), ("Lambda", "3")][..], 60.0),
        ("llmd_nixl_push.sq", &[][..], 200.0),
        ("llmd_4p8d.sq", &[("Lambda", "2.4")][..], 60.0),
        ("guide_8p2d.sq", &[][..], 6.0),
        ("store_and_forward.sq", &[][..], 100.0),
        ("store_and_forward.sq", &[("decoder", "8000"), ("leased", "0")][..], 100.0),
    ] {
        let program = example(file, sets, horizon);
        let (outcome, requests) = run(&program, Steps::Leaps);
        assert!(requests.len() > 50, "{file} {sets:?}: {}", requests.len());
        for request in &requests {
            let sum: f64 = request.parts.iter().sum();
            assert!((sum - request.span()).abs() < 1e-9, "{file} {sets:?}: {request:?}");
            assert!(request.parts.iter().all(|&part| part >= 0.0), "{file} {sets:?}: {request:?}");
        }
        let observe = program.observes.iter().position(|name| name == "ttft").expect("the program measures it");
        let spans: BTreeMap<(u64, u64), f64> = requests.iter().map(|r| ((r.session, r.turn), r.span())).collect();
        assert_eq!(spans.len(), requests.len(), "{file} {sets:?}: one first token a turn");
        for sample in &outcome.samples[observe] {
            let span = spans[&(sample.session, sample.turn as u64)];
            assert!((span - sample.value).abs() < 1e-9, "{file} {sets:?}: {span} of {sample:?}");
        }
        let ttft = outcome.report.ttft.expect("it has both roles");
        // The program takes its samples when answers end, in another order: the interval is near.
        let own = &outcome.report.observes[observe];
        let ratio = ttft.total.ci / own.ci;
        assert!((0.5..2.0).contains(&ratio), "{file} {sets:?}: ±{}, and ±{} by the program", ttft.total.ci, own.ci);
        let sum: f64 = ttft.parts.iter().map(|(_, part)| part.mean).sum();
        assert!((sum - ttft.total.mean).abs() < 1e-9 * ttft.total.mean.max(1.0), "{file} {sets:?}");
        assert_eq!(ttft.count, requests.len() as u64);
    }
}

#[test]
fn leaps_change_no_part() {
    for (file, horizon) in [("llmd_nixl_pull.sq", 60.0), ("store_and_forward.sq", 60.0)] {
        let program = example(file, &[], horizon);
        let ((_, leapt), (_, single)) = (run(&program, Steps::Leaps), run(&program, Steps::Planned));
        assert_eq!(leapt, single, "{file}");
    }
}

/// Two requests at 0. The prefiller takes one after the other (2 steps of 1 each), the hop
/// takes 0.25, the wire 2. The decoder has one seat, its steps last 2, and no prefill of its
/// own: its first decode step makes the first token.
///
/// ```text
///   request 0   route 0.5 │ prefill to 2.5 │ hop to 2.75 │ wire to 4.75 │ first step to 6.75
///               … 4 more steps, the seat is free at 14.75
///   request 1   route 0.5 │ queue to 2.5 │ prefill to 4.5 │ hop to 4.75 │ wire to 6.75 │
///               no seat to 14.75 │ first step to 16.75
/// ```
#[test]
fn the_first_decode_step_ends_it_where_the_decoder_does_not_prefill() {
    let parts = parts(
        "pool kvP { cap 100; admit via P; }
         pool kvD { cap 100; admit via D; }
         pool seat { cap 1; admit via D; }
         stage P : step { budget 10; cost 1; memory kvP; }
         stage D : step { budget 10; cost 2; memory kvD; }
         stage hop : delay;
         stage wire : ps(20);
         workload { arrive batch(2); }
         session {
           run hop (0.5);
           hold kvP (20) { run P prefill (20); }
           run hop (0.25);
           hold kvD (25) {
             run wire (40);
             hold seat (1) { run D decode (5); }
           }
           end;
         }
         run { horizon 50; }",
    );
    let first = vec![("route", 0.5), ("prefill", 2.0), ("hop", 0.25), ("transfer", 2.0), ("first_step", 2.0)];
    let mut second = first.clone();
    second.insert(1, ("prefill_queue", 2.0));
    second.insert(5, ("slot_wait", 8.0));
    assert_eq!(parts, BTreeMap::from([(0, first), (1, second)]));
}

/// Two prompts, of 6 and 4, grow one unit a step in a pool of 6. The younger is preempted at 3,
/// when both have 3, is let in again at 4, preempted again at 5, and comes back at 6, when the
/// elder is done, for its 4 steps. All waits are its queue, all computations its prefill.
#[test]
fn a_preempted_prefill_waits_and_computes_again() {
    let parts = parts(
        "pool kvP { cap 6; preempt lifo; admit via P; }
         pool kvD { cap 100; admit via D; }
         stage P : step { budget 10; chunk 1; cost 1; memory kvP; }
         stage D : step { budget 10; cost 1; memory kvD; }
         workload { arrive batch(2); init { set prompt = serial == 0 ? 6 : 4; } }
         session {
           hold kvP (0) { run P prefill (prompt) growing kvP; }
           hold kvD (prompt + 1) { run D prefill (1); run D decode (3); }
           end;
         }
         run { horizon 50; }",
    );
    let first = vec![("prefill", 6.0), ("first_step", 1.0)];
    let second = vec![("prefill_queue", 2.0), ("prefill", 8.0), ("first_step", 1.0)];
    assert_eq!(parts, BTreeMap::from([(0, first), (1, second)]));
}

/// Every turn is a request of its own, and without turns every time a session comes back to
/// an engine's queue.
#[test]
fn a_session_asks_again() {
    let text = |turn: &str| {
        format!(
            "pool kvP {{ cap 100; admit via P; }}
             pool kvD {{ cap 100; admit via D; }}
             stage P : step {{ budget 10; cost 1; memory kvP; }}
             stage D : step {{ budget 10; cost 1; memory kvD; }}
             stage think : delay;
             workload {{ arrive batch(1); }}
             session {{
               loop {{
                 {turn}
                 hold kvP (10) {{ run P prefill (10); }}
                 hold kvD (10) {{ run D prefill (1); run D decode (3); }}
                 run think (100);
               }}
             }}
             run {{ horizon 250; }}"
        )
    };
    for turn in ["turn;", ""] {
        let (_, requests) = run(&program("again", &text(turn), &Settings::default()), Steps::Leaps);
        let times: Vec<(f64, f64)> = requests.iter().map(|r| (r.asked, r.first_token)).collect();
        assert_eq!(times, [(0.0, 2.0), (105.0, 107.0), (210.0, 212.0)], "`{turn}`");
    }
}

#[test]
fn an_engine_that_does_both_has_no_parts() {
    let text = "pool kv { cap 100; admit via E; }
                stage E : step { budget 10; cost 1; memory kv; }
                workload { arrive batch(1); }
                session { hold kv (10) { run E prefill (10); run E decode (3); } end; }
                run { horizon 10; }";
    let (outcome, requests) = run(&program("both", text, &Settings::default()), Steps::Leaps);
    assert!(requests.is_empty());
    assert!(outcome.report.ttft.is_none());
}

/// Above 8,192 requests the parts' quantiles come from a sketch, unless all are to be kept.
#[test]
fn the_parts_of_many_requests_are_sketched_closely() {
    let program = example("llmd_nixl_pull.sq", &[("Lambda", "2")], 700.0);
    let ttft = |exact| {
        let options = Options { exact, ..Options::default() };
        let outcome = simulate_recorded(&program, None, &options, None, &mut |_, _| true).expect("it runs");
        outcome.report.ttft.expect("it has prefill and decode engines")
    };
    let (sketched, exact) = (ttft(false), ttft(true));
    assert!(sketched.count > 8_192 && sketched.sketched && !exact.sketched);
    assert_eq!(sketched.total.p99.to_bits(), exact.total.p99.to_bits());
    for ((word, sketched), (_, exact)) in sketched.parts.iter().zip(&exact.parts) {
        assert!((sketched.mean - exact.mean).abs() <= 1e-12 * exact.mean, "{word}");
        for (a, b) in [(sketched.p50, exact.p50), (sketched.p90, exact.p90), (sketched.p99, exact.p99)] {
            assert!((a - b).abs() <= 1e-3 * b.abs(), "{word}: {a} and {b}");
        }
    }
}
