//! Leaps change nothing: programs where one could, run with and without.
//!
//! `cargo xtask identity` does the same with every case and example, stressed settings
//! and random programs; these are the corners by themselves, each with leaps that happen.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, Steps, simulate};

fn run(text: &str, steps: Steps) -> Outcome {
    let (mut sources, diagnostics) = load(None, text, &mut |_| Err("nothing is read".into()));
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let (program, diagnostics) = compile(&mut sources, &Settings::default());
    let program = program.unwrap_or_else(|| panic!("{diagnostics:?}"));
    let options = Options { record: true, steps, ..Options::default() };
    simulate(&program, None, &options, &mut |_, _| true).unwrap_or_else(|stop| panic!("{stop:?}"))
}

/// The run with leaps, once it was found to be the one that plans every step, and so the one
/// that takes them singly.
fn same_either_way(text: &str) -> Outcome {
    let [leaps, singly, planned] = [Steps::Leaps, Steps::Singly, Steps::Planned].map(|steps| run(text, steps));
    assert!(leaps.report.leaps > 0 && leaps.report.steps_leapt > 0, "something is leapt over");
    assert!(leaps.report.events < planned.report.events);
    assert_eq!((singly.report.events, singly.report.leaps), (planned.report.events, 0));
    let figures = |outcome: &Outcome| {
        let mut report = outcome.report.clone();
        (report.events, report.leaps, report.steps_leapt) = (0, 0, 0);
        serde_json::to_value(&report).expect("a report is JSON")
    };
    for other in [&leaps, &singly] {
        assert_eq!(other.samples, planned.samples);
        assert_eq!(other.gauge_points, planned.gauge_points);
        assert_eq!(figures(other), figures(&planned));
    }
    leaps
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

/// A growth from outside takes the blocks of one who decodes in a leap. Begun at 0, its steps of 1
/// have ended up to 20, and the one that runs counts: 21 tokens are what it had.
#[test]
fn a_victim_inside_a_leap_has_the_tokens_of_the_steps_before() {
    let text = "
        pool kv { cap 300; block 100; preempt lifo; admit via eng; }
        stage eng : step { budget 64; cost 1; memory kv; }
        stage wait : delay;
        workload {
          arrive batch(2);
          session {
            branch (serial == 0) {
              hold kv (100) { run wait (20.5); grow kv (200); run wait (1); }
              end;
            } else { }
            hold kv (100) at admission (was = computed) { observe computed = was; run eng decode (90) growing kv; }
            observe done = now;
            end;
          }
        }
        run { horizon 200; }";
    let outcome = same_either_way(text);
    assert_eq!(values(&outcome, "computed"), [0.0, 21.0]);
}

/// Who is taken is chosen by how far each has come. One stands at 30 throughout; the other
/// passes it in a leap, at 31 when the growth comes.
#[test]
fn a_victim_is_chosen_by_positions_inside_a_leap() {
    let text = "
        pool kv { cap 300; block 100; preempt by (position); admit via eng; }
        stage eng : step { budget 64; cost 1; memory kv; }
        stage wait : delay;
        workload {
          arrive batch(3);
          session {
            branch (serial == 0) {
              hold kv (100) { run wait (SOON); grow kv (100); run wait (1); }
              end;
            } else { }
            branch (serial == 1) {
              hold kv (100) at admission (was = computed) { observe stands = was; load kv (30); run eng decode (90); }
            } else {
              hold kv (100) at admission (was = computed) { observe goes = was; run eng decode (90) growing kv; }
            }
            observe done = now;
            end;
          }
        }
        run { horizon 300; }";
    let outcome = same_either_way(&text.replace("SOON", "20.5"));
    assert_eq!((values(&outcome, "stands"), values(&outcome, "goes")), (vec![0.0], vec![0.0, 21.0]));
    let outcome = same_either_way(&text.replace("SOON", "30.5"));
    assert_eq!((values(&outcome, "stands"), values(&outcome, "goes")), (vec![0.0, 30.0], vec![0.0]));
}

/// A head was refused, and then somebody who is not at the engine gives room back. The engine
/// sees it at the end of the step that runs, inside a leap too; and at once when it rests.
#[test]
fn room_for_a_refused_head_comes_from_outside() {
    let text = "
        pool kv { cap 100; admit via eng; }
        stage eng : step { budget 64; cost 1; }
        stage wait : delay;
        workload {
          arrive batch(3);
          session {
            branch (serial == 0) { hold kv (60) { run wait (20.5); } end; } else { }
            branch (serial == 1) { hold kv (20) { run eng decode (LONG); } end; } else { }
            hold kv (60) { observe admitted = now; run eng decode (9); }
            end;
          }
        }
        run { horizon 200; }";
    let outcome = same_either_way(&text.replace("LONG", "90"));
    assert_eq!(values(&outcome, "admitted"), [21.0]);
    let outcome = same_either_way(&text.replace("LONG", "9"));
    assert_eq!(values(&outcome, "admitted"), [20.5]);
}

/// A leap of ten steps ends at 10. Its last one begins at 9, before which a delay was begun that
/// ends at 10 too: the delay is first, and sees the job still there. One begun within the last
/// step is second.
#[test]
fn a_leaps_last_step_is_scheduled_when_it_begins() {
    let text = "
        stage eng : step { budget 64; cost 1; }
        stage wait : delay;
        workload {
          arrive batch(3);
          session {
            branch (serial == 0) { run eng decode (10); end; } else { }
            set first = serial == 1 ? 8.5 : 9.5;
            run wait (first);
            run wait (10 - first);
            observe there = queue(eng);
            end;
          }
        }
        run { horizon 20; }";
    let outcome = same_either_way(text);
    assert_eq!(values(&outcome, "there"), [1.0, 0.0]);
}

/// At 1 a delay begun at 0, before the engine was planned, ends together with a leap's first
/// step: it is first, and sees all the work. The next one, begun at 1, is first at 2 as well. The
/// last, begun at 2.5, is second at 3.
#[test]
fn a_leaps_first_step_is_scheduled_where_it_was_planned() {
    let text = "
        stage eng : step { budget 64; cost 1; }
        stage wait : delay;
        workload {
          arrive batch(2);
          session {
            branch (serial == 0) { run eng decode (100); end; } else { }
            run wait (1);
            observe left = work(eng);
            run wait (1);
            observe left = work(eng);
            run wait (0.5);
            run wait (0.5);
            observe left = work(eng);
            end;
          }
        }
        run { horizon 20; }";
    let outcome = same_either_way(text);
    assert_eq!(values(&outcome, "left"), [100.0, 99.0, 97.0]);
}

/// Headers that read what every step changes are tried at every step's end: nobody leaps past the
/// one at which they fit. 100 tokens from 0 on, so that 50 are left at 50.
#[test]
fn a_head_that_waits_for_work_to_be_done_is_tried_after_every_step() {
    let text = "
        pool kv { cap 100; admit via eng; }
        pool room { cap 50; }
        pool seat { cap 50; admit via idle; }
        stage eng : step { budget 64; cost 1; }
        stage idle : step { budget 64; cost 1; }
        stage wait : delay;
        workload {
          arrive batch(2);
          session {
            branch (serial == 0) { hold kv (60) { run eng decode (100); } end; } else { }
            run wait (10.5);
            HOLD { observe admitted = now; }
            end;
          }
        }
        run { horizon 200; }";
    let holds =
        ["hold room (max(work(eng), 1))", "hold seat (max(work(eng), 1))", "hold kv (work(eng) > 50 ? 60 : 10)"];
    for hold in holds {
        let outcome = same_either_way(&text.replace("HOLD", hold));
        assert_eq!(values(&outcome, "admitted"), [50.0], "{hold}");
    }
}

/// A refused head goes away: what it holds elsewhere is preempted. Who stood behind it fits, and
/// is admitted when the step that runs then ends.
#[test]
fn a_refused_head_that_goes_away_lets_the_next_one_in() {
    let text = "
        pool kv { cap 100; admit via eng; }
        pool other { cap 10; preempt lifo; }
        stage eng : step { budget 64; cost 1; }
        stage wait : delay;
        workload {
          arrive batch(4);
          session {
            branch (serial == 0) { hold kv (60) { run eng decode (90); } end; } else { }
            branch (serial == 1) { hold other (5) { run wait (20.5); grow other (5); run wait (90); } end; } else { }
            branch (serial == 2) { run wait (1); hold other (5) { hold kv (60) { run wait (1); } } end; } else { }
            run wait (2);
            hold kv (10) { observe admitted = now; }
            end;
          }
        }
        run { horizon 200; }";
    let outcome = same_either_way(text);
    assert_eq!(values(&outcome, "admitted"), [21.0]);
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
