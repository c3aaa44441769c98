//! Transfers that fail, and what the program says is done then: by hand.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, simulate};

/// One prefiller and one decoder of 16 tokens a step of 1. A prompt of 20 is computed in 2 and leased for `lease`; its
/// copy waits 0.5 and takes 2 at 10 a unit. Then the last token, and 3 more.
fn pair(sessions: u32, lease: &str, policy: &str, route: &str) -> String {
    format!(
        "queue P : prefill {{
          pool mem {{ cap 200; block 4; }}
          serve step {{ budget 16; cost 1; memory mem; }}
          nic ps(10);
          prefill (n) {{ hold mem (n) {{ prefill (n) growing mem; }} lease mem ({lease}) }}
        }}
        queue D : decode {{
          pool mem {{ cap 200; block 4; }}
          serve step {{ budget 16; cost 1; memory mem; }}
          nic ps(10);
          decode (n) {{ hold mem (n) {{ prefill (n) growing mem; }} }}
          decode (n) from src {{
            hold mem (n + 4) {{
              transfer (n) from src to mem (n - 1) {policy};
              mark arrived;
              prefill (1) growing mem;
              mark first;
              decode (3) growing mem;
            }}
          }}
        }}
        D pull P latency 0.5 share maxmin;
        queue gw : gateway {{
          route {{ P.prefill (20); {route} D.decode (20) from P; observe arrived = D.arrived; observe first = D.first; }}
        }}
        stage pause : delay;
        workload {{ arrive batch({sessions}); session {{ request gw; observe answer = now; end; }} }}
        gauge leased = used(P.mem);
        run {{ horizon 10000; }}"
    )
}

fn run(text: &str, seed: u64) -> Outcome {
    let (mut sources, mut said) = load(None, text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings { seed: Some(seed), ..Settings::default() });
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    let options = Options { record: true, ..Options::default() };
    let outcome = simulate(&program, None, &options, &mut |_, _| true).unwrap_or_else(|error| panic!("{error:?}"));
    assert!(outcome.report.pools.iter().all(|pool| pool.left == 0.0 && pool.in_use_at_end == 0.0));
    outcome
}

fn values(outcome: &Outcome, observe: &str) -> Vec<f64> {
    let at = outcome.report.observes.iter().position(|o| o.name == observe).expect("it is observed");
    outcome.samples[at].iter().map(|sample| sample.value).collect()
}

/// (failed reads of P, sessions that failed, releases that came late)
fn counts(outcome: &Outcome) -> (u64, u64, u64) {
    let p = outcome.report.pools.iter().find(|pool| pool.name == "P.mem").expect("P has a pool");
    (p.reads_failed, outcome.report.failed, p.late_releases)
}

/// The lease of 1 runs out at 3, in the middle of the copy, which goes on to 4.5. Then 19 tokens are computed in two steps,
/// to 6.5, and the last one to 7.5.
#[test]
fn what_outlived_its_lease_is_computed_where_it_was_to_go() {
    let outcome = run(&pair(1, "1", "else recompute", ""), 1);
    assert_eq!((values(&outcome, "arrived"), values(&outcome, "first")), (vec![6.5], vec![7.5]));
    assert_eq!(values(&outcome, "answer"), [10.5]);
    assert_eq!(counts(&outcome), (1, 0, 0));
    // To try again what is not there any more takes no time, and is the same failure.
    let again = run(&pair(1, "1", "else retry 3 then recompute", ""), 1);
    assert_eq!((values(&again, "arrived"), counts(&again)), (vec![6.5], (1, 0, 0)));
}

/// It ran out before the copy was to begin: there is nothing to wait for.
#[test]
fn what_is_gone_before_its_copy_begins_costs_no_copy() {
    let outcome = run(&pair(1, "1", "else recompute", "run pause (3);"), 1);
    assert_eq!((values(&outcome, "arrived"), counts(&outcome)), (vec![7.0], (1, 0, 0)));
}

/// Nobody says anything: as before there were policies, the copy is taken and the release comes late.
#[test]
fn without_a_policy_nothing_fails() {
    let outcome = run(&pair(1, "1", "", ""), 1);
    assert_eq!((values(&outcome, "arrived"), counts(&outcome)), (vec![4.5], (0, 0, 1)));
}

/// A session that fails ends there, with all it holds.
#[test]
fn a_session_ends_where_its_program_has_an_error() {
    for policy in ["else error", "else retry 2 then error"] {
        let outcome = run(&pair(3, "1", policy, ""), 1);
        assert_eq!((values(&outcome, "answer"), counts(&outcome)), (vec![], (3, 3, 0)), "{policy}");
        assert_eq!(outcome.report.ended, 3);
    }
}

/// A lease that stands is read again: each try waits 0.5 and copies for 2, and the source is held meanwhile. It is given
/// back before anything is computed again.
#[test]
fn a_read_is_tried_again_while_its_lease_stands() {
    let tried = run(&pair(1, "inf", "fails (1) else retry 2 then recompute", ""), 1);
    assert_eq!((values(&tried, "arrived"), counts(&tried)), (vec![11.5], (3, 0, 0)));
    let held = tried.gauge_points[0].last().copied();
    assert_eq!(held, Some((9.5, 0.0)));
    let never = run(&pair(1, "inf", "fails (0) else error", ""), 1);
    assert_eq!((values(&never, "arrived"), counts(&never)), (vec![4.5], (0, 0, 0)));
    // The lease of 4 ends at 6, within the second try, so there is no third.
    let late = run(&pair(1, "4", "fails (1) else retry 9 then recompute", ""), 1);
    assert_eq!((values(&late, "arrived"), counts(&late)), (vec![9.0], (2, 0, 0)));
}

/// As many as are said, drawn from the seed: 0.3 of 400, and the cube of that fails three times.
#[test]
fn failures_are_drawn_as_probable_as_they_are() {
    let text = pair(400, "inf", "fails (0.3) else retry 2 then error", "").replace("cap 200", "cap 200000");
    let outcome = run(&text, 7);
    let (reads, failed, _) = counts(&outcome);
    // 400 × (0.3 + 0.09 + 0.027), and 400 × 0.027, each with four standard deviations.
    assert!((reads as f64 - 166.8).abs() < 57.0, "{reads}");
    assert!((failed as f64 - 10.8).abs() < 13.0, "{failed}");
    assert_eq!(counts(&run(&text, 7)), counts(&outcome));
    assert_ne!(counts(&run(&text, 8)), counts(&outcome));
}

/// What a program is without sugar is the same program.
#[test]
fn a_policy_is_sugar_for_statements() {
    let with = pair(40, "7", "fails (0.4) else retry 1 then recompute", "");
    let (mut sources, _) = load(None, &with, &mut |_| Err("no libraries here".into()));
    let (program, _) = compile(&mut sources, &Settings::default());
    let without = serq_lang::unsugar(&program.unwrap());
    assert!(without.contains("from P_mem fails (0.4);") && without.contains("branch (failed)"), "{without}");
    let (one, two) = (run(&with, 3), run(&without, 3));
    for name in ["arrived", "first", "answer"] {
        assert_eq!(values(&one, name), values(&two, name));
    }
    assert!(one.report.pools[0].reads_failed > 10);
}
