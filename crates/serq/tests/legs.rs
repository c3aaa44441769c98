//! Legs beside a session, copies that are pushed, and leases that are renewed: by hand. What the
//! reference release does of it too is in `tests/cases/d80…` and `d11…`.

use serq_lang::{Settings, compile, load};
use serq_sim::report::NoteKind;
use serq_sim::{Options, Outcome, RunError, simulate};

fn try_run(text: &str, options: Options) -> Result<Outcome, RunError> {
    let (mut sources, mut said) = load(None, text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    let outcome = simulate(&program, None, &Options { record: true, ..options }, &mut |_, _| true)?;
    assert!(outcome.report.pools.iter().all(|pool| pool.left == 0.0), "nothing is left to nobody");
    Ok(outcome)
}

fn run_without(text: &str, cancellations: &[(f64, u64)]) -> Outcome {
    let options = Options { cancellations: cancellations.to_vec(), ..Options::default() };
    try_run(text, options).unwrap_or_else(|error| panic!("it stops: {error:?}"))
}

fn run(text: &str) -> Outcome {
    run_without(text, &[])
}

/// (time, value) of an observation.
fn samples(outcome: &Outcome, observe: &str) -> Vec<(f64, f64)> {
    let at = outcome.report.observes.iter().position(|o| o.name == observe).expect("it is observed");
    outcome.samples[at].iter().map(|s| (s.time, s.value)).collect()
}

fn points(outcome: &Outcome, gauge: &str) -> Vec<(f64, f64)> {
    let at = outcome.report.gauges.iter().position(|g| g.name == gauge).expect("it is a gauge");
    outcome.gauge_points[at].clone()
}

/// One prefiller and one decoder. A prompt of 10 prefills for 10, is registered for 1, waits 0.5 for its
/// copy, is copied in 1 and decodes for 1.
fn handed_over(route: &str, before: &str, relation: &str) -> String {
    format!(
        "queue P : prefill {{
          pool kv {{ cap 100; }}
          serve fifo;
          nic ps(10);
          prefill (x) {{ hold kv (x) {{ run (x); }} lease kv (inf) }}
        }}
        stage register : delay;
        queue D : decode {{
          pool kv {{ cap 100; }}
          serve fifo;
          nic ps(10);
          decode (x) {{ hold kv (x) {{ run (x); }} }}
          decode (x) from src {{ hold kv (x) {{ run register (1); {before} transfer (x) from src to kv (x); run (1); }} }}
        }}
        {relation} latency 0.5 share maxmin;
        queue gw : gateway {{ route {{ {route} D.decode (x) from P; }} }}
        workload {{ arrive batch(1); session {{ set x = 10; request gw; observe answer = now; end; }} }}
        gauge p = used(P.kv);
        gauge d = used(D.kv);
        run {{ horizon 100; }}"
    )
}

/// Serial: 10 + 1 + 0.5 + 1 + 1. At once, the registration goes on during the prefill, and D's blocks are
/// taken from 0 on. Who pulls and who pushes waits elsewhere, and equally long.
#[test]
fn both_legs_at_once_hide_what_the_decoder_does_before_the_copy() {
    let waits = |outcome: &Outcome| {
        let stages = outcome.report.stages.iter().filter(|stage| stage.name.ends_with("nic.latency"));
        stages.map(|stage| (stage.name.clone(), stage.completed)).collect::<Vec<_>>()
    };
    for (relation, latency) in [("D pull P", "D.nic.latency"), ("P push D", "P.nic.latency")] {
        let serial = run(&handed_over("P.prefill (x);", "", relation));
        assert_eq!(samples(&serial, "answer"), [(13.5, 13.5)]);
        assert_eq!(points(&serial, "p"), [(0.0, 10.0), (12.5, 0.0)]);
        assert_eq!(points(&serial, "d"), [(0.0, 0.0), (10.0, 10.0), (13.5, 0.0)]);
        let at_once = run(&handed_over("fork { P.prefill (x); }", "join;", relation));
        assert_eq!(samples(&at_once, "answer"), [(12.5, 12.5)]);
        assert_eq!(points(&at_once, "p"), [(0.0, 10.0), (11.5, 0.0)]);
        assert_eq!(points(&at_once, "d"), [(0.0, 10.0), (12.5, 0.0)]);
        for outcome in [serial, at_once] {
            assert_eq!(waits(&outcome), [(latency.to_owned(), 1)]);
        }
    }
}

/// The parts of the time to the first token are the session's; behind its `join` they are the leg's. Prefill
/// ends at 2, its copy at 3, the first token comes at 4.
#[test]
fn who_waits_for_a_leg_is_where_that_is() {
    let text = "
        queue P : prefill {
          pool reqs { cap 1; admit via P; }
          pool kv { cap 100; }
          serve step { budget 100; cost 2; memory kv; }
          nic ps(10);
          prefill (x) { hold reqs (1), kv (x) { prefill (x) growing kv; } lease kv (inf) }
        }
        queue D : decode {
          pool kv { cap 100; }
          serve step { budget 100; cost 1; memory kv; }
          nic ps(10);
          decode (x) { hold kv (x) { decode (1); } }
          decode (x) from src { hold kv (x) { join; transfer (x) from src to kv (x); decode (1) growing kv; } }
        }
        D pull P share maxmin;
        queue gw : gateway { route { fork { P.prefill (10); } D.decode (10) from P; } }
        workload { arrive batch(2); session { turn; request gw; observe answer = now; end; } }
        run { horizon 100; }";
    let outcome = run(text);
    // The second prefill waits for the first one's seat.
    assert_eq!(samples(&outcome, "answer"), [(4.0, 4.0), (6.0, 6.0)]);
    let ttft = outcome.report.ttft.expect("there are both engines");
    let mean = |part: &str| ttft.parts.iter().find(|(word, _)| *word == part).unwrap().1.mean;
    assert_eq!(ttft.total.mean, 5.0);
    assert_eq!((mean("prefill_queue"), mean("prefill")), (1.0, 2.0));
    assert_eq!((mean("transfer"), mean("first_step")), (1.0, 1.0));
    assert_eq!(ttft.parts.iter().map(|(_, part)| part.mean).sum::<f64>(), 5.0);
}

/// A session that can never be served takes its leg with it, which 0.1.3 lets run on to 4; and so does a leg
/// its session.
#[test]
fn a_rejected_session_ends_with_its_legs_and_a_rejected_leg_ends_it() {
    let text = |leg: &str, main: &str| {
        format!(
            "pool m {{ cap 10; }}
            stage s : delay;
            workload {{ arrive batch(2); init {{ set much = 11; }} }}
            session {{
              run s (serial * 5);
              fork {{ {leg} observe leg_done = now; }}
              {main}
              join;
              observe joined = now;
              end;
            }}
            gauge used = used(m);
            run {{ horizon 20; }}"
        )
    };
    let outcome = run(&text("hold m (5) { run s (4); }", "hold m (2) { run s (1); hold m (much) { } }"));
    assert_eq!(points(&outcome, "used"), [(0.0, 7.0), (1.0, 0.0), (5.0, 7.0), (6.0, 0.0)]);
    assert_eq!((outcome.report.ended, outcome.report.pools[0].rejected), (2, 2));
    assert!(samples(&outcome, "leg_done").is_empty());
    let outcome = run(&text("run s (1); hold m (much) { }", "hold m (2) { run s (4); }"));
    assert_eq!(points(&outcome, "used"), [(0.0, 2.0), (1.0, 0.0), (5.0, 2.0), (6.0, 0.0)]);
    assert_eq!((outcome.report.ended, outcome.report.pools[0].rejected), (2, 2));
    assert!(samples(&outcome, "joined").is_empty());
}

/// The leg is preempted by its own session's growth and asks for more than there is when it comes back: both
/// end, and the room the growth took is given back.
#[test]
fn a_growth_that_ends_its_own_session_takes_nothing_with_it() {
    let text = "pool m { cap 10; preempt lifo; }
        stage s : delay;
        workload { arrive batch(1); }
        session {
          set n = 4;
          fork { run s (0.5); hold m (n) { set n = 11; run s (5); } }
          hold m (3) { run s (1); grow m (5); observe grown = now; run s (10); }
          join;
        }
        gauge used = used(m);
        run { horizon 20; }";
    let outcome = run(text);
    assert_eq!(samples(&outcome, "grown"), [(1.0, 1.0)]);
    // It grew at 1 and was over at 1, with its leg.
    assert_eq!(points(&outcome, "used"), [(0.0, 3.0), (0.5, 7.0), (1.0, 0.0)]);
    assert_eq!((outcome.report.ended, outcome.report.pools[0].rejected), (1, 1));
}

#[test]
fn the_end_of_a_session_does_not_come_before_that_of_its_legs() {
    let text = "stage s : delay;
        workload { arrive batch(2); }
        session { fork { run s (3); } run s (1); branch (serial == 1) { end; } join; end; }
        run { horizon 10; }";
    let error = try_run(text, Options::default()).expect_err("it stops");
    assert_eq!(error.message, "the session ends while a leg it forked runs; write `join;` before its end");
    assert_eq!((error.time, error.session), (1.0, Some(1)));
}

/// What a leg draws depends on the seed, the session, its turn and which leg it is: not on what the
/// session or another leg draws.
#[test]
fn draws_of_a_leg_are_its_own() {
    let text = |first: &str, main: &str| {
        format!(
            "stage s : delay;
            workload {{ arrive batch(2); }}
            session {{
              turn;
              fork {{ observe first = ~uniform(0, 1); {first} }}
              fork {{ observe second = ~uniform(0, 1); }}
              {main}
              observe main = ~uniform(0, 1);
              run s (1);
              join;
              turn;
              fork {{ observe third = ~uniform(0, 1); }}
              join;
              end;
            }}
            run {{ horizon 10; }}"
        )
    };
    let (one, other) = (run(&text("", "")), run(&text("set x = ~exp(1);", "set y = ~exp(1);")));
    for leg in ["first", "second", "third"] {
        assert_eq!(samples(&one, leg), samples(&other, leg), "{leg}");
    }
    assert_ne!(samples(&one, "main"), samples(&other, "main"));
    let mut all: Vec<u64> = ["first", "second", "third", "main"]
        .iter()
        .flat_map(|name| samples(&one, name))
        .map(|(_, value)| value.to_bits())
        .collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8, "no two are the same number");
}

/// Two prefillers, two decoders, engines, leases that are renewed, copies that are shielded: clients go away
/// at every moment of a grid, and nothing stays behind.
#[test]
fn whoever_goes_away_and_whenever_nothing_is_left() {
    let text = "
        queue P[2] : prefill {
          pool kv { cap 40; block 4; preempt lifo; admit via P; }
          serve step { budget 8; cost 1; memory kv; }
          nic ps(8);
          prefill (x) {
            hold kv (min(x, budget_left(P))) reserve (x) { prefill (x) growing kv; }
            cache (x) lease kv (6) renewed 4 every 1.5 abandoned (2)
          }
        }
        queue D[2] : decode {
          pool kv { cap 48; block 4; preempt lifo; admit via D; }
          serve step { budget 8; cost 1; memory kv; }
          nic ps(8);
          decode (x) { hold kv (x) { decode (1) growing kv; } }
          decode (x) from src {
            set moved = 0;
            hold kv (x) {
              branch (!moved) {
                shielded { join; transfer (x) from src to kv (x - 1); }
                set moved = 1;
              } else { prefill (x - 1) growing kv; }
              prefill (1) growing kv;
              decode (9) growing kv;
            }
          }
        }
        P push D latency 0.5 share maxmin;
        queue gw : gateway {
          route {
            choose i in 2 by (queued(P[i].kv) + work(P[i]));
            choose j in 2 by (used(D[j].kv) + queued(D[j].kv));
            fork { P[i].prefill (20 + serial); }
            D[j].decode (20 + serial) from P[i];
          }
        }
        workload { arrive batch(8); session { request gw; observe answer = now; end; } }
        run { horizon 400; }";
    let mut cut_short = 0;
    for step in 0..120 {
        for first in [0, 3, 6] {
            let time = f64::from(step) * 0.375;
            let outcome = run_without(text, &[(time, first), (time + 1.0, first + 1)]);
            let report = &outcome.report;
            assert_eq!(report.ended, 8, "all are over, clients away at {time}");
            assert!(report.pools.iter().all(|pool| pool.in_use_at_end == 0.0), "clients away at {time}");
            cut_short += u32::from(samples(&outcome, "answer").len() < 8);
        }
    }
    assert!(cut_short > 100, "{cut_short} runs had a client who was not served");
}

/// A session leases 3 of p at 1, is on its way for a while, queues for 8 of q, of which there are 10 and somebody
/// has 8 until `busy`, and is away again behind that.
fn leased(terms: &str, away: &str, busy: &str) -> String {
    format!(
        "pool p {{ cap 10; }}
        pool q {{ cap 10; }}
        stage s : delay;
        workload {{ arrive batch(2); }}
        session {{
          branch (serial == 0) {{ hold q (8) {{ run s ({busy}); }} end; }}
          hold p (3) {{ run s (1); }} lease p {terms}
          run s ({away});
          hold q (8) {{ run s (0.25); release p; observe taken = now; }}
          run s (20);
          end;
        }}
        gauge leased = used(p);
        run {{ horizon 40; }}"
    )
}

/// Leased at 1 for 3. Queued from 1.5 on, it is renewed at 2, 3, 4 … for 2 each, until it is taken at 9.25.
#[test]
fn a_lease_is_renewed_while_its_session_queues_or_holds_elsewhere() {
    let outcome = run(&leased("(3) renewed 2 every 1", "0.5", "9"));
    assert_eq!(samples(&outcome, "taken"), [(9.25, 9.25)]);
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (9.25, 0.0)]);
    let pool = &outcome.report.pools[0];
    assert_eq!((pool.leases_expired, pool.late_releases), (0, 0));
    // 3 units from 1 to 9.25, of 40.
    assert_eq!(pool.mean_leased, 3.0 * 8.25 / 40.0);
}

/// The same without renewals ends at 4: the release at 9.25 comes too late, and is counted.
#[test]
fn a_lease_that_nothing_renews_expires_and_a_release_behind_it_is_told() {
    let outcome = run(&leased("(3)", "0.5", "9"));
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (4.0, 0.0)]);
    let report = &outcome.report;
    assert_eq!((report.pools[0].leases_expired, report.pools[0].late_releases), (1, 1));
    assert_eq!(report.notes.iter().filter(|note| note.kind == NoteKind::Expired).count(), 1);
}

/// On its way until 5, on a delay stage and without a hold, nothing renews it: at 2, 3 and 4 it is nowhere.
#[test]
fn a_session_on_its_way_renews_nothing() {
    let outcome = run(&leased("(3) renewed 2 every 1", "4", "9"));
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (4.0, 0.0)]);
    assert_eq!(outcome.report.pools[0].leases_expired, 1);
    // Queued from 3.75 on, it is renewed at 4, when it would end.
    let outcome = run(&leased("(3) renewed 2 every 1", "2.75", "9"));
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (9.25, 0.0)]);
    // Renewed at 4 until 7 and not again before: every 3, and away from 5 on, when q is free.
    let text = leased("(3.5) renewed 3 every 3", "2", "4.75").replace("release p; ", "");
    let outcome = run(&text);
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (7.0, 0.0)]);
    assert_eq!(outcome.report.pools[0].leases_expired, 1);
}

/// A renewal never shortens a lease, one for ever is not renewed, and a wrong one stops the run.
#[test]
fn renewals_lengthen() {
    let outcome = run(&leased("(30) renewed 1 every 0.5", "0.5", "9"));
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (9.25, 0.0)]);
    let (endless, plain) = (run(&leased("(inf) renewed 1 every 0.5", "0.5", "9")), run(&leased("(inf)", "0.5", "9")));
    assert_eq!(endless.report.events, plain.report.events);
    for (terms, why) in [("(3) renewed 2 every 0", "renewed every 0"), ("(3) renewed 0 - 1 every 1", "renewed for -1")]
    {
        let error = try_run(&leased(terms, "0.5", "9"), Options::default()).expect_err("it stops");
        assert!(error.message.contains(why), "{error:?}");
    }
}

/// A leg's lease is renewed because its session holds elsewhere, before the leg is over and after.
#[test]
fn a_lease_of_a_leg_is_renewed_by_its_session() {
    let text = "pool p { cap 10; }
        pool q { cap 10; }
        stage s : delay;
        workload { arrive batch(1); }
        session {
          fork { hold p (3) { run s (1); } lease p (2) renewed 2 every 1 run s (4); }
          hold q (8) { run s (8); join; release p; observe taken = now; }
          end;
        }
        gauge leased = used(p);
        run { horizon 40; }";
    let outcome = run(text);
    assert_eq!(samples(&outcome, "taken"), [(8.0, 8.0)]);
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (8.0, 0.0)]);
    // Without the hold it is over at 3.
    let outcome =
        run(&text.replace("hold q (8) { run s (8); join; release p; observe taken = now; }", "run s (8); join;"));
    assert_eq!(points(&outcome, "leased"), [(0.0, 3.0), (3.0, 0.0)]);
}
