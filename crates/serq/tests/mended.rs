//! Programs that went wrong once, each with what is right.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, RunError, simulate};

fn run(text: &str) -> Result<Outcome, RunError> {
    let (mut sources, mut said) = load(None, text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    let options = Options { record: true, max_events: Some(100_000), ..Options::default() };
    simulate(&program, None, &options, &mut |_, _| true)
}

fn samples(text: &str, observe: &str) -> Vec<f64> {
    let outcome = run(text).unwrap_or_else(|error| panic!("it stops: {error:?}"));
    let at = outcome.report.observes.iter().position(|o| o.name == observe).expect("it is observed");
    outcome.samples[at].iter().map(|s| s.value).collect()
}

/// The message of a run-time error, and where it stands.
fn stops(text: &str) -> (String, Option<(u32, u32)>, Option<u64>) {
    let error = run(text).expect_err("it stops");
    (error.message, error.at.map(|at| (at.line, at.column)), error.session)
}

/// A grower that is its own victim leaves a job number to the job that writes its evicted
/// blocks. The plan took that one for the grower and pushed a growth for nobody: a panic.
#[test]
fn a_preempted_growers_job_number_is_not_its_own_any_more() {
    let text = "pool T { cap 100; block 4; }
        pool mem { cap 20; block 4; preempt lifo; spill T via L (1) when (1); }
        stage eng : step { budget 100; cost 1; memory mem; }
        stage s : delay;
        stage L : delay;
        workload { arrive batch(2); }
        session {
          branch (serial == 0) {
            hold mem (16) { run s (0.1); } cache (16)
            run s (1);
            hold mem (4) { run s (0.2); run eng prefill (8) growing mem; observe done = now; } cache (100)
          } else { run s (1.15); hold mem (16) { run s (3); } }
          end;
        }
        run { horizon 10; }";
    let done = samples(text, "done");
    assert!(done.len() == 1 && (done[0] - 5.7).abs() < 1e-9, "{done:?}");
}

/// Decodes admitted beside tentative decodes had the whole budget once more.
#[test]
fn decodes_of_exclusive_prefill_stay_within_the_budget() {
    let text = "pool slot { cap 9; admit via eng; }
        stage eng : step { budget 2; cost tokens; serve exclusive prefill; }
        stage s : delay;
        workload { arrive batch(4); }
        session { run s (serial < 2 ? 0 : 1.5); hold slot (1) { run eng decode (5); observe done = now; } end; }
        run { horizon 40; }";
    assert_eq!(samples(text, "done"), [10.0, 10.0, 20.0, 20.0]);
}

/// Two full pools that spill into each other passed pieces round and round.
#[test]
fn spills_in_a_circle_end() {
    let text = "pool p { cap 40; block 1; spill q via s (1) when (1); }
        pool q { cap 40; block 1; spill p via s (1) when (1); }
        pool r { cap 40; block 1; spill p via s (1) when (1); }
        stage s : delay;
        workload { arrive renewal(1); }
        session {
          hold p (10) { run s (0.5); } cache (10)
          hold q (10) { run s (0.5); } cache (10)
          hold r (10) { run s (0.5); } cache (10)
          end;
        }
        run { horizon 50; }";
    let outcome = run(text).expect("it ends");
    assert!(outcome.report.pools.iter().all(|pool| pool.left == 0.0 && pool.spills > 0));
}

/// A body admitted while an engine was planned joined a plain pool's queue, and nothing
/// further happened: nobody tried it.
#[test]
fn who_joins_while_nothing_is_due_is_tried() {
    let text = "pool slot { cap 4; admit via eng; }
        pool plain { cap 4; }
        stage eng : step { budget 8; cost 1; }
        stage s : delay;
        workload { arrive batch(1); }
        session { hold slot (1) { hold plain (1) { observe inside = now; run s (1); } } end; }
        run { horizon 10; }";
    assert_eq!(samples(text, "inside"), [0.0]);
}

#[test]
fn run_time_errors_stand_at_their_statement_and_session() {
    let grow = "pool p { cap 4; } stage s : delay; workload { arrive batch(1); init { set k = 0 - 1; } }\nsession { hold p (1) {\n  grow p (k);\n  run s (1); } end; }\nrun { horizon 10; }";
    assert_eq!(stops(grow), ("a growth: -1, a finite amount of at least 0 is meant".into(), Some((3, 3)), Some(0)));
    // Two of these were infinite together, and what a pool had left was not a number.
    let huge = "pool p { cap inf; } workload { arrive batch(2); init { set u = 1e308; } }\nsession { hold p (u) { } end; }\nrun { horizon 10; }";
    assert_eq!(stops(huge), ("units: 1e308, at most 1e300 is meant".into(), Some((2, 11)), Some(0)));
    // The header of somebody who waits, tried because another gives back.
    let header = "pool p { cap 4; } pool q[2] { cap 4; } stage s : delay; workload { arrive batch(2); }\nsession { branch (serial == 0) { hold p (4) { run s (1); } run s (2); }\n  else { run s (0.5); hold p (2 + used(q[serial * 7])) { run s (1); } } end; }\nrun { horizon 10; }";
    assert_eq!(stops(header), ("index 7 of q: its members are 0 to 1".into(), Some((3, 23)), Some(1)));
    let turn = "pool p[2] { cap 4; }\nworkload { arrive batch(1);\n  turn { set z = 7; set x = used(p[z]); } }\nsession { turn; end; } run { horizon 10; }";
    assert_eq!(stops(turn), ("index 7 of p: its members are 0 to 1".into(), Some((3, 21)), Some(0)));
}

#[test]
fn what_would_not_end_within_an_instant_is_stopped() {
    let evict = "pool m { cap 1e9; block 1; evict by (-size); } stage s : delay; workload { arrive batch(2); }
        session { run s (serial); hold m (1e9) { run s (0.1); } cache (1e9) end; } run { horizon 10; }";
    assert!(stops(evict).0.contains("pieces were evicted in one instant"));
    let blocks =
        "pool m { cap inf; block 1e-300; } stage s : delay; workload { arrive batch(1); init { set n = 1e10; } }
        session { hold m (n) { run s (1); } end; } run { horizon 10; }";
    assert!(stops(blocks).0.contains("more blocks than can be counted"));
    let work = "stage e : step { cost 1; } workload { arrive batch(1); } session { run e prefill (inf); end; } run { horizon 10; }";
    assert!(stops(work).0.contains("infinite work"));
    let law = "stage s : delay; workload { arrive batch(1); } session { set x = ~erlang(1e6, 1); run s (1); end; } run { horizon 10; }";
    assert!(stops(law).0.contains("phases"));
}

#[test]
fn a_law_of_nan_is_nan() {
    let text = "stage s : delay; workload { arrive batch(1); } session { observe x = ~erlang(0/0, 1); run s (1); end; } run { horizon 10; }";
    assert!(samples(text, "x")[0].is_nan());
}

/// A prefill admitted in the place of planned decodes found no room, was its own victim,
/// and the iteration passed with nobody served: the decodes never ended and made no room.
#[test]
fn decodes_keep_their_tokens_when_the_prefill_in_their_place_gets_none() {
    let text = "stage gate : delay;
        pool a { cap 24.625; preempt by (0); admit via eng; }
        stage eng : step { cost 0.25 + residents * 0.25; serve exclusive prefill; }
        workload {
          arrive renewal(1.25);
          init { set x0 = max(4 - serial * 0.5, 1); set x1 = 0.5 + (serial - floor(serial / 3) * 3) * 2; }
        }
        session {
          hold a (5) { run eng decode (serial == 1 ? 1.5 : x0) growing a; run eng decode (x1) growing a; }
          run gate (0.5);
          hold a (1.5) { run eng prefill (3.5) growing a; observe done = serial * 100 + now; }
        }
        run { horizon 24; }";
    assert_eq!(samples(text, "done"), [6.0, 112.25, 317.25, 421.25, 622.75]);
}

/// A share of 1e18 units and a growth of 9 are 1e18, but the pool's account took the 9 too:
/// given back, they were nobody's.
#[test]
fn a_growth_that_is_lost_in_a_large_share_is_not_left_behind() {
    let text = "pool mem { cap 2e18; }
        stage g : delay;
        workload { arrive batch(1); }
        session { hold mem (1e18) { run g (1); grow mem (9); run g (1); } run g (1); observe rest = used(mem); end; }
        run { horizon 9; }";
    assert_eq!(samples(text, "rest"), [0.0]);
}

/// Blocks are numbered one by one where prefixes are shared; so many are refused, not made.
#[test]
fn a_pool_that_shares_prefixes_has_so_many_blocks_and_no_more() {
    let text = "pool kv { block 1; share prefixes; }
        workload { arrive batch(1); }
        session { hold kv (1e12) { } end; }
        run { horizon 9; }";
    let wanted = "kv has more than 4194304 blocks; a larger `block` or a smaller `cap` is meant";
    assert_eq!(stops(text), (wanted.into(), Some((3, 19)), Some(0)));
    let text = "pool kv { cap 4; block 1; share prefixes; }
        workload { arrive batch(1); prefix (0, 0 - 1); }
        session { end; }
        run { horizon 9; }";
    let (message, ..) = stops(text);
    assert_eq!(message, "a prefix of group 0 and -1 tokens: numbers are meant, tokens at least 0");
}

/// A job preempted while its step ran, and the next plan had as many jobs again: the gauge of
/// jobs served was not read there, because the plan looked like the one before.
#[test]
fn a_plan_like_the_one_before_a_preemption_is_looked_at() {
    let outcome = run("stage gate : delay;
        pool a[2] { cap 7; preempt lifo; }
        pool b { cap 16; block 2; preempt lifo; queue by (x0); admit via eng; }
        stage eng : step { cost tokens; chunk 2.5; memory b; };
        workload {
          arrive renewal(0.5);
          init {
            set x0 = max(3 - serial * 0.5, 1);
            set x1 = max(4.75 - serial * 0.5, 1);
            set x2 = 2 + (serial - floor(serial / 3) * 3) * 2;
          }
        }
        session {
          run gate (0.125);
          hold b (x1) reserve (min(x2, 0.75)) {
            hold a[serial - floor(serial / 2) * 2] (3) reserve (3) {
              run eng prefill (3.5) growing a[serial - floor(serial / 2) * 2];
              run gate (2);
              grow b (0.5);
            }
          }
        }
        gauge served = busy(eng);
        run { horizon 40; }");
    let outcome = outcome.unwrap_or_else(|error| panic!("it stops: {error:?}"));
    assert_eq!(outcome.gauge_points[0][4].0, 9.5);
}

/// Who waits is told by what its header asks for at the end. Steps that end at the horizon inside
/// a leap were caught up and then counted as still to come: work far below 0, or a panic.
#[test]
fn what_a_waiter_asks_for_at_the_horizon_knows_the_steps_that_end_there() {
    let text = "pool a { cap 100; admit via short; }
        pool b { cap 100; admit via long; }
        stage short : step { budget 64; cost 1; }
        stage long : step { budget 64; cost 7; }
        stage wait : delay;
        workload { arrive batch(3); }
        session {
          branch (serial == 0) { hold a (60) { run short decode (300); } end; } else { }
          branch (serial == 1) { hold b (60) { run long decode (300); } end; } else { }
          run wait (5.5);
          hold b (work(short)) { observe admitted = now; }
          end;
        }
        run { horizon 100; }";
    let outcome = run(text).expect("it runs");
    assert!(outcome.report.steps_leapt > 50, "the horizon is inside a leap");
    let asked = outcome.report.pools[1].over_cap.as_ref().expect("one waits that asks for more than the cap");
    assert_eq!((asked.queue.as_str(), asked.need), ("b", 200.0));
}

/// Few candidates have keys of their own, in which the index is known. One that no member has
/// was read from the session's attribute instead, which is another candidate's, or none's.
#[test]
fn a_candidate_without_a_member_stops_the_run() {
    for (keys, expected) in [
        ("used(p[i])", "index 2 of p: its members are 0 to 1"),
        ("serial, 1 + cachedin(p[i])", "index 2 of p: its members are 0 to 1"),
        ("budget_left(e[i])", "index 2 of e: its members are 0 to 1"),
    ] {
        let text = format!(
            "pool p[2] {{ cap 4; }}
            stage e[2] : step {{ budget 8; cost 1; }}
            workload {{ arrive batch(1); session {{ set i = 1; choose i in 3 by ({keys}); end; }} }}
            run {{ horizon 10; }}"
        );
        let stop = run(&text).expect_err(keys);
        assert!(stop.message.contains(expected), "{keys}: {}", stop.message);
    }
}

/// A side of a condition that is not needed meets no fault, also where both sides are evaluated.
#[test]
fn a_side_that_is_not_needed_reads_no_member() {
    let text = "pool p[2] { cap 4; }
        workload { arrive batch(1); session {
          set i = 5;
          observe chosen = i < 2 ? used(p[i]) : 7;
          observe both = i < 2 && free(p[i]) > 0;
          observe either = i > 2 || free(p[i]) > 0;
          set i = 1;
          observe there = i < 2 ? free(p[i]) : 7;
          end;
        } }
        run { horizon 10; }";
    let outcome = run(text).expect("it runs");
    let values: Vec<f64> = outcome.samples.iter().map(|samples| samples[0].value).collect();
    assert_eq!(values, [7.0, 0.0, 1.0, 4.0]);
}

/// The candidate is known inside of an aggregate too.
#[test]
fn a_candidate_is_read_inside_an_aggregate() {
    let text = "workload { arrive batch(1); session {
          set i = 0;
          choose i in 4 by (sum k in 3 (abs(i - 2) + k));
          observe chosen = i;
          end;
        } }
        run { horizon 10; }";
    let outcome = run(text).expect("it runs");
    assert_eq!(outcome.samples[0][0].value, 2.0);
}

/// Two pools' positions were compared, and whoever was preempted in one after the other was
/// stuck. The aggressors 0, 1, … grow at 1, 2, … in the pools named, so that the last session,
/// which never gets further, has to go each time.
#[test]
fn who_is_preempted_in_one_pool_and_then_in_another_is_not_stuck() {
    let stuck = |pools: &str, victim: &str| {
        let mut sessions = String::new();
        let count = pools.len();
        for (k, pool) in pools.chars().enumerate() {
            let (at, rest) = (k + 1, 40 - (count - k));
            sessions += &format!(
                "branch (serial == {k}) {{ hold a (1), b (1) {{ run s ({at}); grow {pool} ({rest}); run s (0.25); }} }}"
            );
        }
        let text = format!(
            "pool a {{ cap 40; preempt lifo; }} pool b {{ cap 40; preempt lifo; }} stage s : delay;
            workload {{ arrive batch({}); }}
            session {{ {sessions} branch (serial == {count}) {{ {victim} }} end; }}
            run {{ horizon 50; }}",
            count + 1
        );
        let pools = run(&text).expect("it ends").report.pools;
        [pools[0].preemptions, pools[0].stuck, pools[1].preemptions, pools[1].stuck]
    };
    let waits = "hold a (4), b (4) { run s (100); }";
    assert_eq!(stuck("ab", waits), [1, 0, 1, 0]);
    assert_eq!(stuck("ba", waits), [1, 0, 1, 0]);
    assert_eq!(stuck("aba", waits), [2, 1, 1, 0]);
    assert_eq!(stuck("bab", waits), [1, 0, 2, 1]);
    // Counted once, where it came no further first.
    assert_eq!(stuck("abba", waits), [2, 0, 2, 1]);
    // Position 1 in b, none in a.
    assert_eq!(stuck("ba", "hold a (4), b (4) { load b (1); run s (100); }"), [1, 0, 1, 0]);
    // A pool given back in between is begun anew, by a scope's end or a release.
    let twice = "hold a (4) { hold b (4) { run s (now < 1 ? 100 : 0.25); } run s (now < 2 ? 100 : 0); hold b (4) { run s (100); } }";
    assert_eq!(stuck("bab", twice), [1, 0, 2, 0]);
    let released = "hold b (4) { run s (now < 1 ? 100 : 0.125); release b; hold b (8) { run s (100); } }";
    assert_eq!(stuck("bb", released), [0, 0, 2, 0]);
    let inside = "hold a (4) { hold b (4) { run s (now < 2 ? 100 : 0.25); } run s (100); }";
    assert_eq!(stuck("aba", inside), [2, 1, 1, 0]);
}

/// What was spilled into a pool with blocks is not rounded. Whoever consumed all of it left the
/// part of a block behind, dead.
#[test]
fn a_spilled_entry_is_consumed_whole() {
    for (reuse, found, mean_cached) in [("", 3.5, 3.95), ("reuse (10)", 3.5, 3.95), ("reuse (3.5)", 3.0, 4.3)] {
        // 3.5 are in b from 2 to 3, then what was not consumed, and 6 more from 4 to 10.
        let text = format!(
            "pool a {{ cap 8; spill b via s (0) when (1); }} pool b {{ block 1.5; }} stage s : delay;
            workload {{ arrive batch(2); }}
            session {{
              branch (serial == 0) {{
                hold a (3.5) {{ run s (1); }} cache (inf)
                run s (2);
                hold b (6) {reuse} {{ observe found = cached; run s (1); }} cache (inf)
              }} else {{ run s (2); hold a (8) {{ run s (0.5); }} }}
              end;
            }}
            run {{ horizon 10; }}"
        );
        assert_eq!(samples(&text, "found"), [found], "{reuse}");
        let report = run(&text).expect("it ends").report;
        assert!((report.pools[1].mean_cached - mean_cached).abs() < 1e-9, "{reuse}: {}", report.pools[1].mean_cached);
    }
}
