//! Leaps change nothing: programs where one could, run with and without.
//!
//! `cargo xtask identity` does the same with every case and example, stressed settings
//! and random programs; these are the corners by themselves, each with leaps that happen.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, simulate};

fn run(text: &str, no_leap: bool) -> Outcome {
    let (mut sources, diagnostics) = load(None, text, &mut |_| Err("nothing is read".into()));
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let (program, diagnostics) = compile(&mut sources, &Settings::default());
    let program = program.unwrap_or_else(|| panic!("{diagnostics:?}"));
    let options = Options { record: true, no_leap, ..Options::default() };
    simulate(&program, None, &options, &mut |_, _| true).unwrap_or_else(|stop| panic!("{stop:?}"))
}

/// The run with leaps, once it was found to be the run without.
fn same_either_way(text: &str) -> Outcome {
    let (with, without) = (run(text, false), run(text, true));
    assert!(with.report.leaps > 0 && with.report.steps_leapt > 0, "something is leapt over");
    assert!(with.report.events < without.report.events);
    assert_eq!(without.report.leaps, 0);
    assert_eq!(with.samples, without.samples);
    assert_eq!(with.gauge_points, without.gauge_points);
    let figures = |outcome: &Outcome| {
        let mut report = outcome.report.clone();
        (report.events, report.leaps, report.steps_leapt) = (0, 0, 0);
        serde_json::to_value(&report).expect("a report is JSON")
    };
    assert_eq!(figures(&with), figures(&without));
    with
}

const ENGINE: &str = "
    pool seats { cap 4; admit via eng; }
    pool kv { cap 4000; block 16; preempt lifo; admit via eng; }
    stage eng : step { budget BUDGET; cost 1 + 0.001 * kv_decode; memory kv; }
    workload {
      arrive batch(3);
      session { hold seats (1), kv (16) { run eng prefill (16 + serial) growing kv;
        run eng decode (200 + 10 * serial) growing kv; } observe at_end = now; end; }
    }
    gauge used_kv = used(kv);
    gauge running = queue(eng);
";

#[test]
fn a_batch_decodes_through_many_blocks() {
    let outcome = same_either_way(&format!("let BUDGET = 512; {ENGINE} run {{ horizon 2000; }}"));
    assert_eq!(outcome.samples[0].len(), 3);
}

/// The budget gives one resident half a token in every step.
#[test]
fn a_budget_that_is_no_whole_number_is_not_leapt_over() {
    let text = format!("let BUDGET = 2.5; {ENGINE} run {{ horizon 4000; }}");
    same_either_way(&text);
}

/// Both ends fall exactly on a step's.
#[test]
fn a_warm_up_and_a_horizon_at_the_end_of_a_step() {
    let text = "
        pool seats { cap 1; admit via eng; }
        stage eng : step { budget 8; cost 1; }
        workload { arrive batch(1); session { hold seats (1) { run eng decode (1000); } end; } }
        run { horizon 90; warmup 40; }";
    let outcome = same_either_way(text);
    let stage = &outcome.report.stages[0];
    // Steps begin at 0, 1 … 90; after the warm-up those from 40.
    assert_eq!((stage.iterations, stage.mean_itl, stage.mean_decode_step), (91, 1.0, 1.0));
}

/// Two engines whose steps end together, a queue before one, and clients that come at a step's
/// end: who is first shows in the order of admissions.
#[test]
fn everything_at_one_instant() {
    let text = "
        pool a { cap 2; admit via left; }
        pool b { cap 2; admit via right; }
        stage left : step { budget 4; cost 1; }
        stage right : step { budget 4; cost 1; }
        stage wait : delay;
        workload {
          arrive renewal(3);
          session {
            branch with (0.5) { hold a (1) { run left decode (7 + serial); } } else { hold b (1) { run right decode (9); } }
            run wait (4);
            hold a (1) { run left decode (5); }
            observe order = serial;
            end;
          }
        }
        gauge at_left = used(a) - used(b);
        run { horizon 600; warmup 60; }";
    same_either_way(text);
}

/// Whoever chooses by work looks into leaps.
#[test]
fn work_is_read_inside_a_leap() {
    let text = "
        pool seat[2] { cap 8; admit via eng; }
        stage eng[2] : step { budget 64; cost 0.5; }
        workload {
          arrive renewal(~exp(4));
          session {
            set n = ~uniform(5, 60);
            choose i in 2 by (work(eng[i]));
            observe chosen = i;
            observe seen = work(eng[0]);
            hold seat[i] (1) { run eng[i] decode (n); }
            end;
          }
        }
        run { horizon 2000; }";
    same_either_way(text);
}

/// Decoders that run out of blocks, with a queue of refused heads behind them.
#[test]
fn preemptions_and_refused_heads() {
    let text = "
        pool kv { cap 480; block 16; preempt lifo; admit via eng; }
        stage eng : step { budget 256; cost 0.02 + 0.0001 * (kv_decode + kv_prefill); memory kv; }
        workload {
          arrive poisson(0.4);
          session {
            set n = ~uniform(20, 120);
            hold kv (min(n, budget_left(eng))) reserve (computed < n ? n : computed + 1) {
              run eng prefill ((computed < n ? n : computed + 1) - cached) growing kv;
              run eng decode (150) growing kv;
            } cache (n)
            observe response = now;
            end;
          }
        }
        gauge full = used(kv) / (used(kv) + free(kv));
        run { horizon 1500; warmup 100; }";
    let outcome = same_either_way(text);
    let pool = &outcome.report.pools[0];
    assert!(pool.preemptions > 10 && pool.mean_queue > 0.5, "{} {}", pool.preemptions, pool.mean_queue);
}

/// The values of an observation, in the order they were taken.
fn values(outcome: &Outcome, observe: &str) -> Vec<f64> {
    let at = outcome.report.observes.iter().position(|o| o.name == observe).expect("it is observed");
    outcome.samples[at].iter().map(|s| s.value).collect()
}

/// A budget that reads the batch is read before the admissions: the next step has another one. Four
/// are admitted at 0, the fifth at 1; where the budget falls with the batch, five are admitted at 0,
/// and from 1 on there is a token for one of them, for two when he has gone, then for all.
#[test]
fn a_budget_that_reads_the_batch_changes_after_the_admissions() {
    let text = "
        pool seats { cap 9; admit via eng; }
        stage eng : step { budget BUDGET; cost 1; }
        workload { arrive batch(5); session { hold seats (1) { run eng decode (10); } observe done = now; end; } }
        run { horizon 60; }";
    let outcome = same_either_way(&text.replace("BUDGET", "4 + 2 * residents - decoders"));
    assert_eq!(values(&outcome, "done"), [10.0, 10.0, 10.0, 10.0, 11.0]);
    let outcome = same_either_way(&text.replace("BUDGET", "6 - residents"));
    assert_eq!(values(&outcome, "done"), [10.0, 19.0, 19.0, 28.0, 28.0]);
}
