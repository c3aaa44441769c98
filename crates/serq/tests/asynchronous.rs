//! Engines that plan a step while the one before it runs, and prefills that go on as decodes: by hand.
//! Beside vLLM's schedulers they are in `oracle.rs`.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, Steps, simulate};

fn run_with(text: &str, options: Options) -> Outcome {
    let (mut sources, mut said) = load(None, text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    let options = Options { record: true, ..options };
    let outcome = simulate(&program, None, &options, &mut |_, _| true).expect("it runs");
    assert!(outcome.report.pools.iter().all(|pool| pool.left == 0.0), "nothing is left to nobody");
    outcome
}

fn run(text: &str) -> Outcome {
    run_with(text, Options::default())
}

/// (time, session) of an observation.
fn when(outcome: &Outcome, observe: &str) -> Vec<(f64, u64)> {
    let at = outcome.report.observes.iter().position(|o| o.name == observe).expect("it is observed");
    outcome.samples[at].iter().map(|s| (s.time, s.session)).collect()
}

/// Steps take 1. s0 prefills in [0, 1) and decodes 4 more tokens; s1 comes at 1.5, in the second step.
fn two(engine: &str) -> Outcome {
    run(&format!(
        "stage engine : step {{ cost 1; {engine} }}
        stage away : delay;
        workload {{ arrive batch(2); }}
        session {{
          run away (serial * 1.5);
          run engine prefill (10) {{ observe first = now; }} decode (4);
          observe done = now;
        }}
        run {{ horizon 100; }}"
    ))
}

#[test]
fn without_it_who_comes_is_in_the_next_step() {
    let outcome = two("");
    assert_eq!(when(&outcome, "first"), [(1.0, 0), (3.0, 1)]);
    assert_eq!(when(&outcome, "done"), [(5.0, 0), (7.0, 1)]);
}

#[test]
fn who_comes_while_a_step_runs_is_in_the_one_after_the_next() {
    let outcome = two("asynchronous 1;");
    assert_eq!(when(&outcome, "first"), [(1.0, 0), (4.0, 1)]);
    assert_eq!(when(&outcome, "done"), [(5.0, 0), (8.0, 1)]);
    assert_eq!(outcome.report.leaps, 0);
    let engine = &outcome.report.stages[0];
    assert_eq!(engine.throughput * 100.0, 4.0, "two prefills, two decodes");
    assert_eq!(engine.iterations, 8);
}

/// A decode that is a statement of its own is not known when the next step is planned.
#[test]
fn a_decode_of_its_own_misses_a_step_beside_others() {
    let text = "stage engine : step { cost 1; asynchronous 1; }
        workload { arrive batch(2); }
        session {
          branch (serial == 0) { run engine decode (9); end; }
          run engine prefill (10);
          observe first = now;
          run engine decode (2);
          observe done = now;
        }
        run { horizon 100; }";
    let outcome = run(text);
    assert_eq!(when(&outcome, "first"), [(1.0, 1)]);
    assert_eq!(when(&outcome, "done"), [(4.0, 1)], "steps [0, 1), then [2, 3) and [3, 4)");
}

/// One seat of two comes free at 2, when the step [2, 3) is planned: the third is in [3, 4).
#[test]
fn what_is_given_back_is_given_again_a_step_later() {
    let text = |engine: &str| {
        format!(
            "pool seats {{ cap 2; admit via engine; }}
            stage engine : step {{ cost 1; {engine} }}
            workload {{ arrive batch(3); }}
            session {{
              hold seats (1) {{
                run engine prefill (10) {{ observe first = now; }} decode (serial == 1 ? 1 : 9);
              }}
            }}
            run {{ horizon 100; }}"
        )
    };
    assert_eq!(when(&run(&text("")), "first"), [(1.0, 0), (1.0, 1), (3.0, 2)]);
    assert_eq!(when(&run(&text("asynchronous 1;")), "first"), [(1.0, 0), (1.0, 1), (4.0, 2)]);
}

/// s1 has 16 of 64 and needs more for its tenth token when s0 has taken the rest: it is preempted while
/// its eighth runs, and that is its last.
#[test]
fn a_last_token_that_runs_when_its_session_is_preempted_comes() {
    let text = "pool kv { cap 64; block 16; preempt lifo; admit via engine; }
        stage engine : step { cost 1; memory kv; asynchronous 1; }
        workload { arrive batch(2); }
        session {
          hold kv (known) at admission (known = serial == 0 ? 24 : 16) {
            run engine prefill (known - cached) { observe first = now; } decode (serial == 0 ? 29 : 8) growing kv;
          } cache (0)
          observe done = now;
        }
        run { horizon 100; }";
    let outcome = run(text);
    assert_eq!(when(&outcome, "first"), [(1.0, 0), (1.0, 1)]);
    assert_eq!(when(&outcome, "done"), [(9.0, 1), (30.0, 0)]);
    assert_eq!(outcome.report.pools[0].preemptions, 1);
}

/// s0's client goes away at 1.5, with a step until 2 running and one until 3 planned. Its 10 of 10 are free
/// at once, or once these are over, and s1 is planned at 2 or at 3: either way for the step [3, 4).
#[test]
fn fenced_blocks_come_back_when_their_step_is_over() {
    let text = |fenced: &str| {
        format!(
            "pool kv {{ cap 10; admit via engine; }}
            stage engine : step {{ cost 1; memory kv; asynchronous 1 {fenced}; }}
            workload {{ arrive batch(2); }}
            session {{
              hold kv (10) {{ run engine prefill (5) {{ observe first = now; }} decode (5); }}
            }}
            gauge used = used(kv);
            run {{ horizon 100; }}"
        )
    };
    let gone = || Options { cancellations: vec![(1.5, 0)], ..Options::default() };
    let outcome = run_with(&text(""), gone());
    assert_eq!(outcome.gauge_points[0], [(0.0, 10.0), (1.5, 0.0), (2.0, 10.0), (9.0, 0.0)]);
    assert_eq!(when(&outcome, "first"), [(1.0, 0), (4.0, 1)]);
    let outcome = run_with(&text("fenced"), gone());
    assert_eq!(outcome.gauge_points[0], [(0.0, 10.0), (9.0, 0.0)]);
    assert_eq!(when(&outcome, "first"), [(1.0, 0), (4.0, 1)]);
}

/// Leaps, single steps and planned ones of a prefill that goes on as a decode: the same.
#[test]
fn a_prefill_that_goes_on_is_the_same_run_however_steps_are_taken() {
    let text = "pool kv { cap 640; block 16; preempt lifo; admit via engine; }
        stage engine : step { budget 64; cost 0.01 + 0.001 * tokens; memory kv; }
        workload { arrive poisson(8); init { set answer = ~exp(60); } }
        session {
          hold kv (min(known, budget_left(engine))) reserve (known)
               at admission (known = computed < 40 ? 40 : computed + 1) {
            run engine prefill (known - cached) {
              branch (known == 40) { observe first = now; }
            } decode (answer - (known - 40)) growing kv;
          } cache (40 + answer)
          observe done = now;
        }
        run { horizon 60; }";
    let of = |steps| {
        let outcome = run_with(text, Options { steps, ..Options::default() });
        (outcome.samples, outcome.report.pools[0].preemptions, outcome.report.leaps)
    };
    let (leaps, singly, planned) = (of(Steps::Leaps), of(Steps::Singly), of(Steps::Planned));
    assert_eq!((&leaps.0, leaps.1), (&singly.0, singly.1));
    assert_eq!((&leaps.0, leaps.1), (&planned.0, planned.1));
    assert!(leaps.1 > 10 && leaps.2 > 100, "{} preemptions, {} leaps", leaps.1, leaps.2);
}
